"""Which functions of a file a call reaches, what things are called there, and what follows for a training loop."""

from __future__ import annotations

import ast

import pytest

from tools.loop.calls import all_reached, leading_to, means_same, reached
from tools.loop.script import Script
from tools.rewrite import rewrite
from tools.site import Outcome
from tools.source import Source

FILE = """\
import shared

total = 0


def plain(items, size):
    items.count += 1
    kept = shared.kept
    shared.kept = kept + size


class Base:
    def inherited(self):
        self.seen += 1


class Meter(Base):
    def __init__(self):
        self.sums = []

    def add(this, value):
        this.sums.append(value)
        this.tick()

    def tick(this):
        global total
        total += 1
        this.ticks += 1

    @staticmethod
    def loose(meter):
        meter.sums.clear()


class Other:
    def add(self):
        self.wrong += 1


class Run:
    def __init__(self, given):
        self.accelerator = Accelerator()
        self.meter = None
        self.given = given
        self.either = Meter() if given else Other()
        self.both = Meter()
        self.both = Other()
        made = Meter()
        self.alias = made

    def setup(self):
        self.meter = Meter()

    def own(self):
        self.mine += 1

    @classmethod
    def shared(cls):
        cls.kept += 1

    @classmethod
    def also(cls):
        cls.kept += 1

    def fit(self, one):
        local = Meter()
        pair, second = Meter(), 1
        first, rest = Meter()
        twin = Run(1)

        def nested():
            self.deep += 1
            nonlocal local
            local = None

        CALL
"""


def file_with(call: str) -> tuple[Script, ast.stmt]:
    script = Script(Source(FILE.replace("CALL", call)))
    return script, script.module.classes["Run"].functions["fit"].node.body[-1]


@pytest.mark.parametrize(
    ("call", "line"),
    [
        ("plain(one, 2)", "def plain(items, size):"),
        ("nested()", "def nested():"),
        ("x = self.own()", "def own(self):"),
        ("local.tick()", "def tick(this):"),
        ("pair.tick()", "def tick(this):"),
        ("self.meter.tick()", "def tick(this):"),
        ("self.meter.inherited()", "def inherited(self):"),
        ("self.alias.add(1)", "def add(this, value):"),
        ("Meter()", "def __init__(self):"),
    ],
)
def test_a_call_reaches_the_function_that_it_runs(call, line):
    script, node = file_with(call)
    found = reached(script, node)
    assert found is not None
    assert script.source.segment(found.function.node).startswith(line)


@pytest.mark.parametrize(
    "call",
    [
        "unknown()",
        "one.tick()",
        "self.given.tick()",
        "self.either.add(1)",
        "self.both.add(1)",
        "self.accelerator.add(1)",
        "self.tick()",
        "self.meter.sums.add(1)",
        "first.tick()",
        "second.tick()",
        "missing.meter.tick()",
        "plain",
        "x = 1 + self.own()",
    ],
)
def test_a_call_that_is_not_plain_reaches_nothing(call):
    assert reached(*file_with(call)) is None


@pytest.mark.parametrize(
    ("call", "names"),
    [
        ("plain(one, 2)", {"items.count": "one.count", "items": None, "kept": None, "shared.kept": "shared.kept"}),
        ("plain(size=2, items=self.x)", {"items.count": "self.x.count", "size.y": None}),
        ("nested()", {"self.deep": "self.deep", "local": "local"}),
        ("self.own()", {"self.mine": "self.mine", "self": "self"}),
        ("self.meter.tick()", {"this.ticks": "self.meter.ticks", "total": "total"}),
        ("self.meter.add(one)", {"this.sums": "self.meter.sums", "value.x": "one.x"}),
        ("local.loose(one)", {"meter.sums": "one.sums"}),
        ("Meter()", {"self.sums": None}),
    ],
)
def test_the_caller_has_its_own_names_for_what_a_function_touches(call, names):
    found = reached(*file_with(call))
    assert found is not None
    assert {name: found.outside(name) for name in names} == names
    there = {name: outer for name, outer in names.items() if outer is not None and name != "self"}
    assert {found.inside(outer): outer for outer in there.values()} == there


def test_what_has_no_name_in_the_function_is_not_found_there():
    found = reached(*file_with("self.meter.tick()"))
    assert found is not None
    assert [found.inside(name) for name in ("local", "self.deep", "self.meter", "self.metered.ticks")] == [None] * 4


def test_what_an_object_of_the_same_class_holds_is_not_what_this_one_holds():
    found = reached(*file_with("twin.own()"))
    assert found is not None
    assert (found.inside("twin.mine"), found.inside("self.mine"), found.outside("self.mine")) == (
        "self.mine",
        None,
        "twin.mine",
    )


def test_calls_are_followed_and_the_names_with_them():
    script, node = file_with("print(self.meter.add(one))")
    found = list(all_reached(script, node))
    assert [item.function.name for item in found] == ["add", "tick"]
    assert found[1].outside("this.ticks") == "self.meter.ticks"
    assert found[1].inside("self.meter.ticks") == "this.ticks"
    assert found[1].inside("one.ticks") is None
    assert found[1].inside("local.ticks") is None


def test_what_a_function_keeps_for_itself_has_no_name_outside_however_it_is_reached():
    text = "def outer():\n    inner()\n\ndef inner():\n    own = 0\n    own += 1\n\nouter()\n"
    script = Script(Source(text))
    assert [item.outside("own") for item in all_reached(script, script.module.node.body[-1])] == ["own", None]


def test_functions_that_call_each_other_come_to_an_end():
    text = "def one():\n    two()\n\ndef two():\n    one()\n\none()\n"
    script = Script(Source(text))
    assert [item.function.name for item in all_reached(script, script.module.node.body[-1])] == ["one", "two", "one"]


@pytest.mark.parametrize(
    ("one", "other", "name", "same"),
    [
        ("own", "fit", "self.mine", True),
        ("own", "fit", "shared.kept", True),
        ("own", "fit", "total", True),
        ("own", "fit", "local", False),
        ("own", "fit", "self", False),
        ("shared", "also", "cls.kept", True),
    ],
)
def test_functions_mean_the_same_by_what_neither_keeps_for_itself(one, other, name, same):
    script, _ = file_with("pass")
    functions = script.module.classes["Run"].functions
    assert means_same(script, functions[one], functions[other], name) is same


def test_methods_of_two_classes_share_nothing_by_the_name_cls():
    method = "    @classmethod\n    def count(cls):\n        cls.x += 1\n\n"
    script = Script(Source(f"class One:\n{method}class Two:\n{method}"))
    one, two = (script.read(found.functions["count"]) for found in script.module.classes.values())
    assert not means_same(script, one, two, "cls.x")


def test_functions_of_no_class_share_nothing_by_the_name_self():
    script = Script(Source("def one(self):\n    self.x += 1\n\ndef two(self):\n    self.x += 1\n"))
    one, two = script.module.functions.values()
    assert not means_same(script, script.read(one), script.read(two), "self.x")


def test_the_functions_that_lead_to_a_statement_are_found_through_objects():
    script, node = file_with("self.meter.add(1)")
    tick = script.module.classes["Meter"].functions["tick"]
    found = leading_to(script, [script.read(tick).node.body[-1]])
    assert [scope.name for scope in found] == ["tick", "add", "fit"]
    assert found[script.places[node].scope] == {node}


# what follows for a training loop

GATE = "accelerator.sync_gradients and not accelerator.optimizer_step_was_skipped"
SCRIPT = """\
from accelerate import Accelerator


class State:
    def __init__(self):
        self.step = 0
        self.losses = []

    def advance(this):
        {method}

    def forget(this):
        this.losses = []


class Run:
    def __init__(self, model, optimizer, loader):
        self.accelerator = Accelerator({accumulation})
        self.model, self.optimizer, self.loader = self.accelerator.prepare(model, optimizer, loader)
        self.state = State()

    def fit(self):
        accelerator = self.accelerator
        for batch in self.loader:
            with accelerator.accumulate(self.model):
                loss = self.model(batch)
                {inside}
                accelerator.backward(loss)
                self.optimizer.step()
                self.optimizer.zero_grad()
            {behind}
"""
LOCAL = SCRIPT.replace("        self.state = State()\n", "").replace(
    "        accelerator = self.acc", "        state = State()\n        accelerator = self.acc"
)


def script_with(
    behind, method="this.step += 1", inside="pass", accumulation="gradient_accumulation_steps=2", local=False
):
    behind = behind.replace("\n", "\n            ")
    text = (LOCAL if local else SCRIPT).format(behind=behind, method=method, inside=inside, accumulation=accumulation)
    return text.replace("self.state.", "state.") if local else text


def changed(text: str) -> str:
    """The lines that a rewrite adds, without their indentation."""
    result = rewrite(text.encode())
    compile(result.after, "script", "exec")
    assert rewrite(result.after).after == result.after
    before = text.splitlines()
    return "\n".join(line.strip() for line in result.after.decode().splitlines() if line not in before)


def refused(text: str) -> list[str]:
    result = rewrite(text.encode())
    assert result.after == result.before
    return [site.code for site in result.sites if site.outcome is Outcome.REFUSED]


@pytest.mark.parametrize("local", [False, True])
def test_a_counter_in_a_method_of_an_object_is_gated_like_any_other(local):
    text = script_with("self.state.advance()\nprint(loss)", accumulation="", local=local)
    call = "state.advance()" if local else "self.state.advance()"
    assert changed(text) == f"if {GATE}:\n{call}"


def test_a_counter_of_an_object_that_moves_at_every_batch_is_reported():
    assert refused(script_with("self.state.advance()\nprint(loss)")) == ["counts-batches"]


@pytest.mark.parametrize("local", [False, True])
def test_a_test_on_the_counter_of_an_object_does_not_fire_twice(local):
    name = "state.step" if local else "self.state.step"
    behind = "if accelerator.sync_gradients:\n    self.state.advance()\nif self.state.step % 9 == 0:\n    accelerator.save_state()"
    assert f"if {GATE} and {name} % 9 == 0:" in changed(script_with(behind, local=local))


def test_a_test_on_the_counter_of_another_object_stays():
    behind = "if accelerator.sync_gradients:\n    self.state.advance()\nif self.other.step % 9 == 0:\n    accelerator.save_state()"
    text = script_with(behind).replace("self.state = State()", "self.state, self.other = State(), State()")
    assert changed(text) == f"if {GATE}:"


def test_a_window_that_a_method_fills_is_cleared_at_skipped_boundaries_too():
    behind = (
        "if accelerator.sync_gradients:\n    accelerator.log({'loss': self.state.losses})\n    self.state.losses = []"
    )
    text = script_with(behind, method="this.losses.append(1)", inside="self.state.advance()")
    assert changed(text) == f"if {GATE}:\nelif accelerator.sync_gradients:"


def test_data_that_a_method_counts_keeps_its_block_as_it_is():
    behind = "if accelerator.sync_gradients:\n    self.state.advance()"
    text = script_with(behind, method="this.samples_seen += 8\n        this.step += 1")
    assert refused(text) == ["nested-reset"]


# a step that a method of an object makes

STEPPER = """\
from accelerate import Accelerator


class Engine:
    def __init__(self, accelerator, model, optimizer):
        self.accelerator = accelerator
        self.model, self.optimizer, self.on = model, optimizer, True

    def update(self, batch):
        with self.accelerator.accumulate(self.model):
            self.accelerator.backward(self.model(batch))
            STEP
            self.optimizer.zero_grad()


class Run:
    def __init__(self, model, optimizer):
        self.accelerator = Accelerator(ACCUMULATION)
        model, optimizer = self.accelerator.prepare(model, optimizer)
        self.engine = Engine(self.accelerator, model, optimizer)
        self.steps = 0

    def fit(self, loader):
        for batch in loader:
            self.engine.update(batch)
            if self.accelerator.sync_gradients:
                self.steps += 1
"""


def stepper(step="self.optimizer.step()", accumulation="gradient_accumulation_steps=2"):
    return STEPPER.replace("STEP", step).replace("ACCUMULATION", accumulation)


def test_a_step_in_a_method_of_an_object_is_seen():
    flag = "self.accelerator.optimizer_step_was_skipped"
    assert changed(stepper()) == f"if self.accelerator.sync_gradients and not {flag}:"


@pytest.mark.parametrize(
    "step",
    [
        "if self.on:\n                self.optimizer.step()\n            self.on = not self.on",
        "self.on = bool(batch)\n            if self.on:\n                self.optimizer.step()",
        "good = bool(batch)\n            if good:\n                self.optimizer.step()",
    ],
)
def test_a_condition_of_the_method_is_not_repeated_where_its_names_mean_something_else(step):
    assert refused(stepper(step)) == ["conditional-step"]
    in_one = stepper(step).replace(
        "        self.steps = 0\n\n    def fit(self, loader):\n", "        self.steps, loader = 0, []\n"
    )
    assert refused(in_one.replace("self.engine", "engine")) == ["conditional-step"]


@pytest.mark.parametrize(("held", "is_read"), [("accelerator", True), ("_accelerator", False)])
def test_a_counter_behind_the_step_of_an_object_asks_the_accelerator_that_it_shows(held, is_read):
    text = stepper(accumulation="").replace("self.accelerator = Accelerator()", "accelerator = Accelerator()")
    text = text.replace("self.accelerator.prepare", "accelerator.prepare").replace("Engine(self.acc", "Engine(acc")
    text = text.replace("            if self.accelerator.sync_gradients:\n    ", "")
    head, _, rest = text.partition("class Run")
    text = head.replace("self.accelerator", f"self.{held}") + "class Run" + rest
    after = rewrite(text.encode()).after.decode()
    assert is_read or refused(text) == ["unknown-accelerator"]
    assert (f"not self.engine.{held}.optimizer_step_was_skipped:" in after) == is_read


OWN_STEP = """\
from accelerate import Accelerator


class Momentum:
    def __init__(self, model, inner=None):
        self.model, self.inner_optimizer = model, inner

    def step(self):
        BODY


class Run:
    def __init__(self, model, adam):
        self.accelerator = Accelerator()
        adam = self.accelerator.prepare(adam)
        self.optimizer = Momentum(model, adam)

    def fit(self, loader):
        for batch in loader:
            self.accelerator.backward(batch)
            self.optimizer.step()
            self.steps += 1
"""


def test_an_optimizer_of_the_file_that_nobody_prepared_is_refused_wherever_it_is_kept():
    text = OWN_STEP.replace("BODY", "self.model.data.add_(1)")
    assert refused(text) == ["unprepared-optimizer"]
    local = text.replace("        for batch", "        optimizer = Momentum(None)\n        for batch")
    assert refused(local.replace("self.optimizer.step()", "optimizer.step()")) == ["unprepared-optimizer"]


def test_an_optimizer_of_the_file_that_steps_a_prepared_one_is_looked_into():
    text = OWN_STEP.replace("BODY", "self.inner_optimizer.step()").replace(
        "self.model, self.inner_optimizer = model", "self.model = model\n        self.inner_optimizer = inner  #"
    )
    assert "self.accelerator.optimizer_step_was_skipped:" in changed(text)


def test_objects_that_are_handed_through_a_function_in_a_circle_are_followed_only_so_far():
    text = """\
from accelerate import Accelerator

def default(value, other):
    return value if value is not None else other

class Trainer:
    def __init__(self, model, optimizer, clock=None):
        self.accelerator = Accelerator()
        self.model, self.optimizer = self.accelerator.prepare(model, optimizer)
        self.clock = default(clock, self.clock)
        self.clock = default(self.clock, model)

    def strike(self):
        print(self.ticks)

    def fit(self, loader):
        for batch in loader:
            self.accelerator.backward(self.model(batch))
            self.optimizer.step()
            self.clock.strike()
            self.ticks += 1
"""
    assert "self.accelerator.optimizer_step_was_skipped:" in changed(text)
