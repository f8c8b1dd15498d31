"""Hooks and callbacks that count: gated where the file shows all that a list holds, and reported otherwise."""

import textwrap

import pytest

from tools.rewrite import rewrite

CLASSES = """\
class Counter:
    def on_step(self, trainer):
        trainer.global_step += 1

class Logger:
    def on_step(self, trainer):
        \"\"\"Tells.\"\"\"
        if trainer.global_step % 10 == 0:
            accelerator.log({}, step=trainer.global_step)

class Nothing:
    def on_step(self, trainer):
        pass

class Timer:
    def on_step(self, trainer):
        trainer.seconds = clock()

class Batches:
    def on_step(self, trainer):
        trainer.batches += 1

class Other:
    def on_epoch(self, trainer):
        trainer.global_step += 1

def count(trainer):
    trainer.global_step += 1

"""
HEAD = """\
def main(trainer, loader, given):
    accelerator = Accelerator()
    optimizer = accelerator.prepare(AdamW())
"""
STEP = "accelerator.backward(model(batch))\noptimizer.step()\n"
LOOP = "for hook in hooks:\n    hook.on_step(trainer)"


def become(given, body, classes=CLASSES):
    """The lines that the loop's body becomes, and the codes of what is reported there."""
    text = f"{classes}{HEAD}{textwrap.indent(given, '    ')}\n    for batch in loader:\n"
    text += textwrap.indent(f"{STEP}{body}\nprint(batch)\n", " " * 8)
    result = rewrite(text.encode())
    after = result.after.decode()
    compile(after, "hooks", "exec")
    assert rewrite(result.after).after == result.after
    lines = textwrap.dedent(after[after.index(" " * 8 + "accelerator.backward") :])
    return lines.removeprefix(STEP).removesuffix("\nprint(batch)\n"), {site.code for site in result.sites}


def gated(body):
    return "if not accelerator.optimizer_step_was_skipped:\n" + textwrap.indent(body, "    ")


@pytest.mark.parametrize(
    "hooks",
    ["[Counter()]", "[Counter(), Logger()]", "(Counter(), Nothing(), Counter())"],
)
def test_a_list_of_what_counts_or_logs_is_gated_as_a_whole(hooks):
    assert become(f"hooks = {hooks}", LOOP) == (gated(LOOP), {"gated"})


def test_functions_in_a_list_are_hooks_too():
    loop = "for hook in hooks:\n    hook(trainer)"
    assert become("hooks = [count, count]", loop) == (gated(loop), {"gated"})


@pytest.mark.parametrize(
    ("given", "loop"),
    [
        ("hooks = [Counter(), Timer()]", LOOP),
        ("hooks = [Counter(), imported()]", LOOP),
        ("hooks = [Counter()]\nhooks.append(Timer())", LOOP),
        ("hooks = [Counter()]\nhooks = given", LOOP),
        ("hooks = []", LOOP),
        ("hooks = given", LOOP),
        ("hooks = {'a': Counter()}", "for name, hook in hooks.items():\n    hook.on_step(trainer)"),
        ("hooks = given", "[hook.on_step(trainer) for hook in hooks]"),
        ("hooks = given", "for hook in hooks:\n    if hook is not None:\n        hook.on_step(trainer)"),
        ("hooks = given", "for hook in hooks:\n    getattr(hook, 'on_step')(trainer)"),
    ],
)
def test_what_the_file_does_not_show_or_does_more_is_reported(given, loop):
    assert become(given, loop) == (loop, {"unclear-count"})


def test_hooks_that_count_data_keep_the_loop():
    assert become("hooks = [Counter(), Batches()]", LOOP) == (LOOP, {"nested-reset"})


@pytest.mark.parametrize(
    "loop",
    [
        "for hook in hooks:\n    hook.on_epoch_end(trainer)",
        "for hook in hooks:\n    other.on_step(hook)",
        "for hook in hooks:\n    hook[0].on_step(trainer)",
        "for hook in hooks:\n    getattr(hook, given)(trainer)",
        "for hook in hooks:\n    getattr(hook)(trainer)",
        "[item for item in hooks]",
    ],
)
def test_loops_that_run_nothing_which_counts_are_not_told(loop):
    assert become("hooks = given", loop) == (loop, set())


def test_a_loop_under_the_flag_is_right():
    body = gated(LOOP)
    assert become("hooks = given", body) == (body, {"applied"})


@pytest.mark.parametrize(
    ("event", "codes"), [('"on_step"', {"unclear-count"}), ('"on_epoch"', set()), ("given", set())]
)
def test_an_event_is_followed_into_the_function_that_fires_it(event, codes):
    classes = CLASSES.replace("on_epoch", "at_epoch")
    fire = "def fire(event):\n    for hook in HOOKS:\n        getattr(hook, event)(None)\n\nfire('start')\n\n"
    call = f"fire({event})"
    assert become("", call, classes + fire) == (call, codes)


@pytest.mark.parametrize(
    ("given", "call", "is_told"),
    [
        ("state = KINDS[given]()", "state.tick(trainer)", True),
        ("state = Ticker() if given else Clock()", "state.tick(trainer)", True),
        ("state = given", "state.tick(trainer)", True),
        ("state = given", "state.inner.tick(trainer)", True),
        ("state = given", "trainer.tick(state)", True),
        ("", "library.tick(trainer)", False),
        ("state = given", "state.on_step(trainer)", False),
        ("state = given", "state.update(trainer)", False),
        ("state = given", "states[0 + 1].tick(trainer)", False),
        ("progress_bar = given", "progress_bar.tick(trainer)", False),
    ],
)
def test_a_method_of_an_unknown_object_is_told_where_all_of_its_name_count(given, call, is_told):
    classes = "".join(
        f"class {name}:\n    def tick(self, trainer):\n        trainer.step += 1\n\n"
        "    def update(self, trainer):\n        trainer.step += 1\n\n"
        for name in ("Ticker", "Clock")
    )
    assert become(given, call, CLASSES + classes) == (call, {"unclear-count"} if is_told else set())


@pytest.mark.parametrize(
    "maker", ["Ticker()", "Ticker() if given else None", "make()", "Ticker.make()", "make_said()"]
)
def test_an_object_that_the_file_shows_is_followed(maker):
    classes = (
        "class Ticker:\n    def tick(self, trainer):\n        trainer.step += 1\n\n"
        "    @classmethod\n    def make(cls):\n        return cls()\n\n"
        "def make():\n    made = Ticker()\n    return made\n\ndef make_said() -> Ticker:\n    return imported()\n\n"
    )
    call = "state.tick(trainer)"
    assert become(f"state = {maker}", call, CLASSES + classes) == (gated(call), {"gated"})


def test_a_handler_of_callbacks_is_told_once():
    handler = (
        "class Handler:\n    def __init__(self):\n        self.all = []\n\n"
        "    def on_step(self, trainer):\n        for item in self.all:\n            item.on_step(trainer)\n\n"
    )
    call = "handler.on_step(trainer)"
    assert become("handler = Handler()", call, CLASSES + handler) == (call, {"unclear-count"})
