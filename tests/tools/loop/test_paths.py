"""Ways through an iteration, and the attempts on each."""

import ast

import pytest

from tools.loop.paths import equality, is_wildcard
from tools.options import Options
from tools.source import Source
from tools.work import Work


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a == 1", ("a", 1)),
        ("a.b == 'x'", ("a.b", "x")),
        ("a == b", (None, None)),
        ("a != 1", (None, None)),
        ("a is 1", (None, None)),
        ("a == 1 == 1", (None, None)),
        ("f() == 1", (None, 1)),
        ("a", (None, None)),
    ],
)
def test_a_comparison_of_a_name_with_a_constant(text, found):
    assert equality(ast.parse(text, mode="eval").body) == found


@pytest.mark.parametrize(
    ("pattern", "answer"),
    [("_", True), ("x", True), ("1", False), ("_ if y", False), ("[a, b]", False), ("1 as x", False)],
)
def test_a_case_that_matches_everything(pattern, answer):
    (node,) = ast.parse(f"match a:\n    case {pattern}: pass").body
    assert is_wildcard(node.cases[0]) is answer


HEAD = """\
accelerator = Accelerator()
opt = accelerator.prepare(SGD())
other = SGD()


def inner():
    opt.step()


def outer():
    if early: return
    inner()


def none():
    print(1)


def round(n):
    if n: round(n - 1)
    opt.step()
"""


def ways(body, head=HEAD):
    """The attempts on each way to the last statement of a loop (their lines), and what decides between the ways."""
    lines = "".join(f"        {line}\n" for line in body.splitlines())
    work = Work(
        Source(
            f"{head}\n\ndef main():\n    for x in y:\n{lines}        last\n    asked = accelerator.sync_gradients\n"
        ),
        Options(),
    )
    node = next(node for node in work.script.places if ast.unparse(node) == "last")
    state = work.flow.before.get(node)
    if state is None:
        return None
    return sorted(
        (
            [site.owner for site in path.steps],
            sorted(("" if item.value else "not ") + ast.unparse(item.node) for item in path.conditions),
            path.is_looped,
        )
        for path in state.paths
    )


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        ("opt.step()", [(["opt"], [], False)]),
        ("x = opt.step()", [(["opt"], [], False)]),
        ("x += opt.step()", [(["opt"], [], False)]),
        ("x: int = opt.step()", [(["opt"], [], False)]),
        ("assert opt.step()", [(["opt"], [], False)]),
        ("print(1)\nopt.step()", [(["opt"], [], False)]),
        ("opt.step(); opt.step()", [(["opt", "opt"], [], False)]),
        ("if a:\n    opt.step()", [([], ["not a"], False), (["opt"], ["a"], False)]),
        ("if a:\n    opt.step()\nelse:\n    x = 1", [([], ["not a"], False), (["opt"], ["a"], False)]),
        ("if a:\n    x = 1\nelse:\n    opt.step()", [([], ["a"], False), (["opt"], ["not a"], False)]),
        ("if a:\n    opt.step()\nelse:\n    opt.step()", [(["opt"], ["a"], False), (["opt"], ["not a"], False)]),
        ("if a:\n    x = 1", [([], [], False)]),
        ("if a:\n    continue\nopt.step()", [(["opt"], [], False)]),
        ("if a:\n    x = 1\nelse:\n    break\nopt.step()", [(["opt"], [], False)]),
        ("if a:\n    raise E\nelse:\n    return\nopt.step()", None),
        ("if opt.step():\n    x = 1", [(["opt"], [], False)]),
        ("with a:\n    opt.step()", [(["opt"], [], False)]),
        ("with opt.step():\n    x = 1", [(["opt"], [], False)]),
        ("for a in b:\n    opt.step()", [(["opt"], [], True)]),
        ("while a:\n    opt.step()", [(["opt"], [], True)]),
        ("for a in b:\n    x = 1\nelse:\n    x = 2", [([], [], False)]),
        ("try:\n    opt.step()\nexcept E:\n    x = 1", [([], [], False), (["opt"], [], False)]),
        ("try:\n    opt.step()\nexcept E:\n    continue", [(["opt"], [], False)]),
        ("try:\n    x = 1\nexcept E:\n    opt.step()\n    continue", [([], [], False)]),
        ("try:\n    x = 1\nexcept E:\n    continue\nelse:\n    opt.step()", [(["opt"], [], False)]),
        ("try:\n    x = 1\nfinally:\n    opt.step()", [(["opt"], [], False)]),
        ("try:\n    continue\nfinally:\n    opt.step()", None),
        ("match a:\n    case 1: opt.step()", [([], [], False), (["opt"], [], False)]),
        ("match a:\n    case 1: opt.step()\n    case _: opt.step()", [(["opt"], [], False), (["opt"], [], False)]),
        ("match a:\n    case 1: opt.step()\n    case _: continue", [(["opt"], [], False)]),
        ("def f():\n    opt.step()", [([], [], False)]),
        ("class A:\n    x = opt.step()", [([], [], False)]),
        ("inner()", [(["opt"], [], False)]),
        ("x = inner()", [(["opt"], [], False)]),
        ("inner()\nopt.step()", [(["opt", "opt"], [], False)]),
        ("outer()", [([], [], False), (["opt"], [], False)]),
        ("none()", [([], [], False)]),
        ("round(1)", [(["opt"], [], False)]),
        ("for a in b:\n    inner()", [(["opt"], [], True)]),
        ("other.step()", [([], [], False)]),
        ("opt.zero_grad()", [([], [], False)]),
        ("step()", [([], [], False)]),
        ("opts[i].step()", [([], [], False)]),
        ("if hasattr(opt, 'step'):\n    opt.step()", [(["opt"], [], False)]),
        (
            "if is_deepspeed:\n    opt.step()\nelse:\n    x = 1",
            [([], ["not is_deepspeed"], False), (["opt"], ["is_deepspeed"], False)],
        ),
        ("if a.distributed_type == 1:\n    opt.step()", [(["opt"], [], False)]),
        ("if t != DistributedType.XLA:\n    opt.step()", [(["opt"], [], False)]),
        ("if not is_xla:\n    opt.step()", [(["opt"], [], False)]),
        ("if not args.deepspeed:\n    opt.step()", [(["opt"], [], False)]),
        ("if a.is_tpu:\n    opt.step()", [(["opt"], [], False)]),
        ("if is_tpu():\n    opt.step()", [(["opt"], [], False)]),
        ("if accelerator.sync_gradients:\n    opt.step()", [(["opt"], [], False)]),
        ("if not accelerator.sync_gradients:\n    x = 1\nelse:\n    opt.step()", [(["opt"], [], False)]),
        (
            "if accelerator.sync_gradients and a:\n    opt.step()",
            [
                ([], ["not accelerator.sync_gradients and a"], False),
                (["opt"], ["accelerator.sync_gradients and a"], False),
            ],
        ),
    ],
)
def test_the_ways_to_a_statement(body, wanted):
    head = HEAD.replace("other = SGD()\n", "other = build()\n")
    found = ways(body, head)
    assert found == (wanted and sorted(wanted))


@pytest.mark.parametrize(
    ("test", "sides"),
    [
        ("accelerator.sync_gradients", (True, False)),
        ("not accelerator.sync_gradients", (False, True)),
        ("accelerator.sync_gradients and a", (True, None)),
        ("not accelerator.sync_gradients or a", (None, True)),
        ("accelerator.sync_gradients or a", (None, None)),
        ("a", (None, None)),
    ],
)
def test_which_side_of_a_test_only_boundaries_reach(test, sides):
    text = f"{HEAD}\n\ndef main():\n    for x in y:\n        opt.step()\n        if {test}:\n            yes\n        else:\n            no\n"
    work = Work(Source(text + "with accelerator.accumulate(m): pass\n"), Options())
    found = {ast.unparse(node): state.sync for node, state in work.flow.before.items()}
    assert (found["yes"], found["no"]) == sides


@pytest.mark.parametrize(
    ("test", "sides"),
    [
        ("accelerator.optimizer_step_was_skipped", (False, True)),
        ("not accelerator.optimizer_step_was_skipped", (True, False)),
        ("accelerator.optimizer_step_was_skipped or a", (False, True)),
        ("not accelerator.optimizer_step_was_skipped and a", (True, False)),
        ("not (accelerator.sync_gradients and accelerator.optimizer_step_was_skipped)", (True, False)),
        ("accelerator.optimizer_step_was_skipped and a", (False, False)),
        ("accelerator.sync_gradients", (False, False)),
    ],
)
def test_which_side_of_a_test_only_applied_updates_reach(test, sides):
    text = f"{HEAD}\n\ndef main():\n    for x in y:\n        opt.step()\n        if {test}:\n            yes\n        else:\n            no\n"
    work = Work(Source(text), Options())
    found = {ast.unparse(node): state.is_gated for node, state in work.flow.before.items()}
    assert (found["yes"], found["no"]) == sides


STEPS = """\
accelerator = Accelerator()
opt = accelerator.prepare(SGD())
scaler = GradScaler()
engine = build()
lr_scheduler = build()


class Own:
    def step(self): pass


own_opt = Own()
for x in y:
    {}
"""


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("opt.step()", ("opt", "optimizer", False)),
        ("opt.step(closure)", ("opt", "optimizer", False)),
        ("scaler.step(opt)", ("opt", "scaler", False)),
        ("scaler.step()", None),
        ("scaler.step(opt, 1)", None),
        ("scaler.step(f())", None),
        ("engine.step()", ("engine", "engine", False)),
        ("lr_scheduler.step()", None),
        ("own_opt.step()", ("own_opt", "optimizer", False)),
        ("opt.steps()", None),
        ("opt.step", None),
        ("a[i].step()", None),
        ("for an_opt in opts: an_opt.step()", ("an_opt", "optimizer", True)),
    ],
)
def test_what_attempts_an_update(text, found):
    work = Work(Source(STEPS.replace("{}", text)), Options())
    assert [(site.owner, site.kind, site.is_many) for site in work.flow.steps] == ([found] if found else [])


ENTRIES = """\
class Trainer:
    def __init__(self):
        self.accelerator = Accelerator()
        self.opt = self.accelerator.prepare(SGD())

    def after(self):
        inside

    def train(self):
        with self.accelerator.accumulate(m): pass
        for x in y:
            BEFORE
            self.opt.step()
            AFTER
"""


@pytest.mark.parametrize(
    ("before", "after", "wanted"),
    [
        ("pass", "self.after()", (True, None, False)),
        ("pass", "if self.accelerator.sync_gradients: self.after()", (True, True, False)),
        ("pass", "x = self.after()", (True, None, False)),
        ("pass", "if not self.opt.step_was_skipped: self.after()", (True, None, True)),
        ("self.after()", "self.after()", None),
        ("self.after()", "pass", None),
        ("pass", "pass", None),
    ],
)
def test_a_function_that_is_called_behind_the_step_only_is_walked_with_what_is_known_there(before, after, wanted):
    work = Work(Source(ENTRIES.replace("BEFORE", before).replace("AFTER", after)), Options())
    (state,) = [state for node, state in work.flow.before.items() if ast.unparse(node) == "inside"] or [None]
    assert (state and (state.is_after_step, state.sync, state.is_gated)) == wanted
