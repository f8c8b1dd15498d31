"""Loops of many shapes, made at random and run: what must hold is asked of the runs, not of the text.

A run of the rewritten loop in which updates are skipped must do what a run of the loop as it was does on data without
the batches of those updates: the same averages, bars, logs, checkpoints, validations and counts, in the same order.
Without a skipped update both do the same. Where the rewriter refuses, or reports what it leaves, only that is asked.
"""

import contextlib
import re
import textwrap
from collections import Counter
from dataclasses import dataclass, field

from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from tools.rewrite import rewrite
from tools.site import Outcome

BATCHES = 24  # an epoch: windows of 1, 2 and 3 come out even
PLANS = ({2}, {1}, {1, 2, 3}, {3, 4, 7}, {4})
OPEN_CODES = {"never-reset", "held-log", "crossing"}  # left, with a fault that the report tells
IMPORTS = """\
import torch
from accelerate import Accelerator
from diffusers.training_utils import EMAModel
from torch.optim.lr_scheduler import LambdaLR
from tqdm import tqdm
"""


@dataclass
class World:
    """What a loop runs in: events instead of effects, and optimizers that skip the attempts of a plan."""

    skipped: frozenset[int] = frozenset()
    gone: frozenset[tuple[int, int]] = frozenset()  # batches that the data does not hold: epoch and place
    events: list[tuple] = field(default_factory=list)
    windows: list[list[tuple[int, int]]] = field(default_factory=lambda: [[]])  # the last one is open
    epochs: int = 0
    applied: int = 0

    def run(self, text: str) -> "World":
        names = {
            "Accelerator": lambda **options: Accelerator(self, **options),
            "EMAModel": lambda model: Recorder(self, "average"),
            "LambdaLR": lambda optimizer: Scheduler(),
            "loader": Loader(self),
            "make_model": lambda: Model(),
            "make_optimizer": lambda model: Optimizer(self),
            "tqdm": lambda: Recorder(self, "bar"),
            "validate": lambda model, step: self.note("validate", step),
        }
        exec(compile(text.removeprefix(IMPORTS), "loop", "exec"), names)
        try:
            self.note("end", *names["main"]())
        except StopIteration:
            self.note("out of data")
        return self

    def note(self, *event: object) -> None:
        self.events.append((*event, self.applied) if event[0] == "average" else event)


@dataclass
class Loader:
    world: World

    def __iter__(self):
        epoch, self.world.epochs = self.world.epochs, self.world.epochs + 1
        for place in range(BATCHES):
            if (epoch, place) not in self.world.gone:
                self.world.windows[-1].append((epoch, place))
                yield float(epoch * BATCHES + place + 1)


class Model:
    def __call__(self, batch: float) -> float:
        return batch

    def parameters(self) -> list[float]:
        return []

    def train(self) -> None:
        """As a model does; nothing to record."""


@dataclass
class Optimizer:
    world: World
    accelerator: "Accelerator | None" = None  # the one that prepared it
    step_was_skipped: bool = False

    def step(self) -> None:
        if self.accelerator is not None and not self.accelerator.sync_gradients:
            return  # the flag keeps its answer, as with the real one
        self.step_was_skipped = len(self.world.windows) in self.world.skipped
        self.world.windows.append([])
        self.world.applied += not self.step_was_skipped

    def zero_grad(self) -> None:
        """Nothing to record."""


@dataclass
class Scheduler:
    accelerator: "Accelerator | None" = None
    count: int = 0

    def step(self) -> None:
        owner = self.accelerator
        self.count += owner is None or (owner.sync_gradients and not owner.optimizer_step_was_skipped)

    def get_last_lr(self) -> list[int]:
        return [self.count]


@dataclass
class Recorder:
    world: World
    name: str

    def step(self, model: Model) -> None:
        self.world.note(self.name)

    def update(self, number: int) -> None:
        self.world.note(self.name, number)


@dataclass
class Accelerator:
    world: World
    gradient_accumulation_steps: int = 1
    is_main_process: bool = True
    sync_gradients: bool = True
    batches: int = 0
    optimizers: list[Optimizer] = field(default_factory=list)

    def prepare(self, *objects: object) -> object:
        for item in objects:
            item.accelerator = self
        self.optimizers += [item for item in objects if isinstance(item, Optimizer)]
        return objects if len(objects) > 1 else objects[0]

    @contextlib.contextmanager
    def accumulate(self, model: Model):
        self.batches += 1
        self.sync_gradients = self.batches % self.gradient_accumulation_steps == 0
        yield

    @property
    def optimizer_step_was_skipped(self) -> bool:
        return any(item.step_was_skipped for item in self.optimizers)

    def backward(self, loss: float) -> None:
        """Nothing to record."""

    def clip_grad_norm_(self, parameters: list[float], most: float) -> None:
        """Nothing to record."""

    def wait_for_everyone(self) -> None:
        """Nothing to record."""

    def log(self, values: dict[str, float], step: int) -> None:
        self.world.note("log", step, values)

    def save_state(self, path: str) -> None:
        self.world.note("save", path)


def indented(text):
    return textwrap.indent(text, "    ")


def block(header, *parts):
    return f"{header}\n" + indented("\n".join(part for part in parts if part) or "pass")


@dataclass
class Shape:
    """The choices of one loop, and how it calls its things."""

    draw: object

    def pick(self, *values):
        return self.draw(st.sampled_from(values))

    def some(self, values, most):
        return self.draw(st.lists(st.sampled_from(values), max_size=most, unique=True))

    def __post_init__(self):
        self.own = self.pick("", "", "self.")
        self.kind = self.pick("accumulate", "accumulate", "accumulate", "plain", "modulo", "step under guard")
        self.size = 1 if self.kind == "plain" else self.pick(1, 2, 3)
        self.step = self.own + self.pick("global_step", "completed_steps", "num_updates")
        self.sum = self.own + "total" if self.pick(True, False) else "total"
        self.acc, self.optimizer, self.scheduler, self.ema, self.bar = (
            self.own + name for name in ("accelerator", "optimizer", "scheduler", "ema", "bar")
        )
        self.gather, self.value, self.zero, self.reset = self.pick(
            (f"{self.sum} += loss", self.sum, "0.0", f"{self.sum} = 0.0"),
            (f"{self.sum} = {self.sum} + loss", self.sum, "0.0", f"{self.sum} = 0.0"),
            (f"{self.sum}.append(loss)", f"sum({self.sum})", "[]", f"{self.sum} = []"),
            (f"{self.sum}.append(loss)", f"sum({self.sum})", "[]", f"{self.sum}.clear()"),
            ("", "loss", "0.0", ""),
        )
        self.is_prepared = self.pick(True, False) or self.size > 1
        self.calls_method = bool(self.own) and self.sum.startswith("self.") and self.pick(True, False, False)

    def log(self):
        line = f"{self.acc}.log({{'loss': {self.value}}}, step={self.step})"
        every = self.pick(1, 1, 2, 3)
        line = self.pick(
            line, block(f"if {self.acc}.is_main_process:", line), f"lr = {self.scheduler}.get_last_lr()\n{line}"
        )
        return f"{line}\n{self.reset}" if every == 1 else block(f"if {self.step} % {every} == 0:", line, self.reset)

    def actions(self):
        step, save = self.step, f"{self.acc}.save_state(f'at-{{{self.step}}}')"
        return self.some(
            [
                block(f"if {step} % 3 == 0:", save),
                block(
                    f"if not {step} % 2:",
                    block(f"if {self.acc}.is_main_process:", save),
                    f"{self.acc}.wait_for_everyone()",
                ),
                block(f"if {step} in (2, 5):", f"validate(model, {step})", "model.train()"),
                block(f"if {step} == 3 or {step} == 6:", f"validate(model, {step})"),
                block(f"due = {step} % 4 == 0\nif due:", save),
                f"{self.ema}.step(model)",
                block(f"if use_ema and {step} > 1:", f"{self.ema}.step(model)"),
                f"{self.bar}.update(1)",
            ],
            3,
        )

    def bookkeeping(self):
        """Statements that count an update, in one of the orders that people use."""
        count = self.pick(f"{self.step} += 1", f"{self.step} = {self.step} + 1")
        stop = [block(f"if {self.step} >= most:", "break")] if self.pick(True, False) and not self.calls_method else []
        parts = [
            *self.some([f"{self.ema}.step(model)", f"{self.bar}.update(1)"], 2),
            count,
            self.log(),
            *self.actions(),
            *stop,
        ]
        return [*parts[1:], parts[0]] if not stop and self.pick(True, False, False) else parts

    def guarded(self, test, body):
        form = self.pick("if", "if", "continue", "alias", "and", "walrus", "else")
        if form == "continue":
            return block(f"if not {test}:", "continue") + f"\n{body}"
        if form == "alias":
            return f"synced = {test}\n" + block("if synced:", body)
        if form == "else":
            return block(f"if not {test}:", "pass") + "\n" + block("else:", body)
        header = {"if": f"if {test}:", "and": f"if use_ema and {test}:", "walrus": f"if (synced := {test}):"}[form]
        return block(header, body)

    def iteration(self, parts, behind):
        """One iteration: forward, step, bookkeeping, and what stands behind it."""
        book, sync = "\n".join(parts), f"{self.acc}.sync_gradients"
        forward = ["loss = model(batch)", self.gather, f"{self.acc}.backward(loss)"]
        step = [f"{self.optimizer}.step()", f"{self.scheduler}.step()", f"{self.optimizer}.zero_grad()"]
        if self.kind == "plain":
            return [*forward, *step, book, *behind]
        if self.kind == "modulo":
            test = f"(step + 1) % {self.size} == 0"
            split = self.pick(True, False)
            first = block(f"if {test}:", *step, "" if split else book)
            return [*forward, first, block(f"if {test}:", book) if split else "", *behind]
        header = f"with {self.acc}.accumulate(model):"
        if self.kind == "step under guard":
            return [block(header, *forward, block(f"if {sync}:", *step, book)), *behind]
        clip = (
            block(f"if {sync}:", f"{self.acc}.clip_grad_norm_(model.parameters(), 1.0)")
            if self.pick(True, False)
            else ""
        )
        if self.pick(True, False):
            return [block(header, *forward, clip, *step, self.guarded(sync, book)), *behind]
        return [block(header, *forward, clip, *step), self.guarded(sync, book), *behind]

    def loop(self, body):
        if self.kind != "modulo" and self.pick(True, False, False):
            return "data = iter(loader)\n" + block(f"while {self.step} < most:", "batch = next(data)", *body)
        inner = block("for step, batch in enumerate(loader):", *body)
        again = f"{self.sum} = {self.zero}" if self.pick(True, False) else ""
        return self.pick(inner, block("for epoch in range(2):", again, inner))

    def text(self):
        parts, behind = self.bookkeeping(), []
        method = (
            block("def after_update(self, loss):", "model, use_ema = self.model, True", *parts)
            if self.calls_method
            else ""
        )
        if method:
            parts = ["self.after_update(loss)"]
        elif self.size == 1 and self.pick(True, False, False):
            cut = self.draw(st.integers(1, len(parts)))
            parts, behind = parts[:cut], parts[cut:]
        prepared = "optimizer, scheduler" if self.is_prepared else "optimizer"
        accumulates = self.kind in ("accumulate", "step under guard")
        made = [
            f"accelerator = Accelerator({f'gradient_accumulation_steps={self.size}' if accumulates else ''})",
            "model = make_model()",
            "optimizer = make_optimizer(model)",
            "scheduler = LambdaLR(optimizer)",
            f"{prepared} = accelerator.prepare({prepared})",
            "ema, bar = EMAModel(model), tqdm()",
        ]
        starts = [f"{self.step} = 0", f"{self.sum} = {self.zero}"]
        body = ["most, use_ema = 9, True", self.loop(self.iteration(parts, behind))]
        body.append(f"return {self.step}, {self.scheduler}.get_last_lr()")
        if not self.own:
            return f"{IMPORTS}\n\n" + block("def main():", *made, *starts, *body) + "\n"
        held = [f"self.{name} = {name}" for name in ("accelerator", "model", "optimizer", "scheduler", "ema", "bar")]
        init = block("def __init__(self):", *made, *held, *(line for line in starts if line.startswith("self.")))
        train = block(
            "def train(self):", "model = self.model", *(x for x in starts if not x.startswith("self.")), *body
        )
        trainer = block("class Trainer:", "\n\n".join(part for part in (init, method, train) if part))
        return f"{IMPORTS}\n\n{trainer}\n\n\n" + block("def main():", "return Trainer().train()") + "\n"


@st.composite
def loops(draw):
    return Shape(draw).text()


def refusals(sites):
    return Counter(site.code for site in sites if site.outcome is Outcome.REFUSED)


def without(text, plan, windows):
    """A run of a loop on data without the batches of the attempts of a plan."""
    gone = {batch for number in plan for window in windows[number - 1 : number] for batch in window}
    return World(gone=frozenset(gone)).run(text).events


def gated_by_hand(text):
    """A loop whose guards ask the flag, and in which nothing else was done: no resets, no test elsewhere."""
    guard = r"(if (?:use_ema and )?((?:self\.)?accelerator)\.sync_gradients):\n(?!\s+\S*(?:clip_grad|optimizer\.step))"
    text = re.sub(guard, r"\1 and not \2.optimizer_step_was_skipped:\n", text)
    leave = r"if not ((?:self\.)?accelerator)\.sync_gradients:(\s+continue)"
    return re.sub(leave, r"if not \1.sync_gradients or \1.optimizer_step_was_skipped:\2", text)


def judge(text, changed, seen):
    """Compare the runs of a loop, changed and rewritten, with those of the loop as it was, and count what was seen."""
    result = rewrite(changed.encode())
    after = result.after.decode()
    note(after + "\n".join(f"{site.line} {site.code}: {site.message}" for site in result.sites))
    assert not refusals(rewrite(result.after).sites) - refusals(result.sites)
    assert World().run(after).events == World().run(text).events
    is_whole = not any(site.outcome is Outcome.REFUSED or site.code in OPEN_CODES for site in result.sites)
    seen.update(["loops", *(["whole"] if is_whole else [])])
    for plan in map(frozenset, PLANS):
        run = World(plan).run(after)
        if is_whole:
            wanted = without(text, plan, run.windows)
            seen["faults before"] += World(plan).run(changed).events != wanted
            assert run.events == wanted, plan


def test_skipped_updates_leave_no_trace():
    seen = Counter()

    @settings(max_examples=300, suppress_health_check=list(HealthCheck))
    @given(loops())
    def run(text):
        judge(text, text, seen)

    run()
    assert seen["whole"] > 0.7 * seen["loops"]
    assert seen["faults before"] > 0.9 * len(PLANS) * seen["whole"]


def test_loops_that_were_gated_by_hand_are_made_whole():
    seen = Counter()

    @settings(max_examples=200, suppress_health_check=list(HealthCheck))
    @given(loops())
    def run(text):
        changed = gated_by_hand(text)
        if changed != text:
            judge(text, changed, seen)

    run()
    assert seen["whole"] > 0.7 * seen["loops"] > 0
    assert seen["faults before"] > 0.5 * len(PLANS) * seen["whole"]
