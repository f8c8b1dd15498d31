"""What decides about a step that is not made in every iteration."""

import ast

import pytest

from tools.loop.conditions import Conditions, Nature, nature, normal
from tools.loop.paths import Condition
from tools.loop.script import Script
from tools.source import Source

LOOP = """\
class Trainer:
    def __init__(self):
        self.fixed = 1

    def __post_init__(self):
        self.late = 1

    def setup(self):
        self.built = 1

    def change(self):
        self.moved = 1

    def train(self, loader, args, flag):
        plain = args.plain
        for epoch in range(9):
            for index, (batch, target) in enumerate(tqdm(loader)):
                loss = model(batch)
                first, (second, *rest) = parts
                sums += loss
                with context as inside:
                    updates += 1
                for part in batch:
                    optimizer.step()
                if TEST: pass
"""


def condition_of(test, text=LOOP):
    script = Script(Source(text.replace("TEST", test)))
    node = next(node for node in script.places if isinstance(node, ast.If))
    return script, Condition(ast.dump(node.test), True, node.test, node)


@pytest.mark.parametrize(
    ("test", "wanted"),
    [
        *((test, Nature.MODE) for test in ("args.mode", "flag", "plain", "self.fixed", "self.late", "self.built")),
        *(
            (test, Nature.MODE)
            for test in ("unknown", "isinstance(model, Net)", "hasattr(model, 'x')", "len(parts) > 1")
        ),
        *((test, Nature.MODE) for test in ("bool(flag)", "int(plain) > 1", "getattr(args, 'x')", "callable(model)")),
        *((test, Nature.MODE) for test in ("args.mode == 'a' or flag", "not flag", "epoch_wise", "loader")),
        *((test, Nature.DATA) for test in ("loss < 9", "batch.ok", "target", "first", "second", "rest", "sums > 1")),
        *(
            (test, Nature.DATA)
            for test in ("inside", "part", "self.moved", "isfinite(flag)", "flag.item()", "flag and loss")
        ),
        *((test, Nature.DATA) for test in ("isinstance(loss, Net)", "len(batch) > 1", "batch['a']")),
        *((test, Nature.PERIOD) for test in ("index % 2 == 0", "epoch > 1", "updates == 3", "flag and index > 1")),
        *((test, Nature.PERIOD) for test in ("index.real > 1", "loss < 9 and epoch")),
    ],
)
def test_the_nature_of_a_condition(test, wanted):
    assert nature(*condition_of(test)) is wanted


def test_a_called_name_is_not_read():
    assert nature(*condition_of("isinstance(flag, Net)", LOOP.replace("loss = ", "isinstance = "))) is Nature.MODE


@pytest.mark.parametrize(
    ("head", "test", "wanted"),
    [
        ("for i in range(9):", "i > 1", Nature.PERIOD),
        ("for i in trange(9):", "i > 1", Nature.PERIOD),
        ("for i in count():", "i > 1", Nature.PERIOD),
        ("for i in itertools.count():", "i > 1", Nature.PERIOD),
        ("for i, x in enumerate(y):", "i > 1", Nature.PERIOD),
        ("for i, x in enumerate(y):", "x > 1", Nature.DATA),
        ("for i in y:", "i > 1", Nature.DATA),
        ("for i in other(9):", "i > 1", Nature.DATA),
        ("while i:", "i > 1", Nature.MODE),
        ("while j:\n        i = f()", "i > 1", Nature.DATA),
        ("while j:\n        i += 1", "i > 1", Nature.PERIOD),
        ("for i in range(9):\n      while j:", "i > 1", Nature.PERIOD),
    ],
)
def test_the_variables_of_loops(head, test, wanted):
    text = f"def f(y, j):\n    {head}\n        optimizer.step()\n        if {test}: pass\n"
    assert nature(*condition_of(test, text)) is wanted


@pytest.mark.parametrize(
    ("parameter", "wanted"),
    [
        *(
            (name, Nature.MODE)
            for name in ("args", "arguments", "cfg", "conf", "config", "option", "options", "opt", "opts")
        ),
        *((name, Nature.MODE) for name in ("hparams", "settings", "params", "flags", "self", "cls", "CFG")),
        *((name, Nature.DATA) for name in ("do_step", "my_args", "configs")),
    ],
)
def test_without_a_loop_the_parameters_vary_but_settings_do_not(parameter, wanted):
    text = f"def f({parameter}):\n    optimizer.step()\n    if {parameter}.x: pass\n"
    assert nature(*condition_of("", text)) is wanted


def test_an_asynchronous_loop_and_with_bind_as_well():
    text = """\
async def f(y):
    async for i in range(9):
        optimizer.step()
        async with y as z:
            if TEST: pass
"""
    assert nature(*condition_of("i > 1", text)) is Nature.PERIOD
    assert nature(*condition_of("z", text)) is Nature.DATA


@pytest.mark.parametrize(
    ("test", "between", "answer"),
    [
        ("x", "", True),
        ("x.y", "", True),
        ("x", "y = 1", True),
        ("x", "x = 1", False),
        ("x.y", "x = 1", False),
        ("x", "x += 1", False),
        ("x", "x: int = 1", False),
        ("x", "a, x = 1, 2", False),
        ("x", "[a, x] = b", False),
        ("x", "for x in y: pass", False),
        ("x", "if y: x = 1", False),
        ("self.x", "self.y = 1", True),
        ("x", "x.y = 1", False),
        ("x", "f(x)", True),
        ("math.isfinite(x)", "", True),
        ("isfinite(x)", "", True),
        ("x.isnan()", "", True),
        ("isinf(x)", "", True),
        ("bool(len(x)) and int(x) and float(x) and abs(x)", "", True),
        ("x.item() and any(x) and all(x) and min(x) and max(x) and a.is_main_process()", "", True),
        ("f(x)", "", False),
        ("x.isfinite_like()", "", False),
        ("fisnan(x)", "", False),
        ("f()()", "", False),
        ("make().item()", "", False),
    ],
)
def test_whether_a_condition_has_still_its_value(test, between, answer):
    text = f"def f():\n    if {test}:\n        optimizer.step()\n    {between or 'pass'}\n    last = 1\n    x = 3\n"
    script, condition = condition_of("", text)
    last = next(node for node in script.places if ast.unparse(node) == "last = 1")
    assert Conditions(script).is_stable(condition, last) is answer


def test_what_the_tested_statement_itself_binds_counts():
    script, condition = condition_of(
        "", "def f():\n    while x:\n        x = optimizer.step()\n        if x: pass\n    last = 1\n"
    )
    last = next(node for node in script.places if ast.unparse(node) == "last = 1")
    assert Conditions(script).is_stable(condition, last)


@pytest.mark.parametrize(
    ("text", "value", "same"),
    [("a", True, "a"), ("not a", False, "a"), ("not not a", True, "a"), ("-a", True, "-a"), ("not -a", False, "-a")],
)
def test_a_condition_in_its_plain_form(text, value, same):
    node = ast.parse(text, mode="eval").body
    statement = ast.parse("if x: pass").body[0]
    wanted = ast.dump(ast.parse(same, mode="eval").body)
    assert normal(Condition("", True, node, statement)) == (wanted, value)
    assert normal(Condition("", False, node, statement)) == (wanted, not value)
