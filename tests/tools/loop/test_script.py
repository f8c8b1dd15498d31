"""Where statements stand, what scopes bind, and who calls which function."""

import ast
import re

import pytest

from tools.loop.script import Script
from tools.source import Source

TEXT = """\
import torch

top = 1


def free(a, /, b, *rest, c, **more):
    d = top
    if (e := d) and a:
        while (f := b): pass
    return optimizer.step()


async def waits(self):
    async for g in self.loader:
        optimizer.step()


class Base:
    shared = 1

    def inherited(self):
        self.optimizer.step()


class Trainer(Base):
    def __init__(self, accelerator):
        self.accelerator = Accelerator()
        self.count = 0

    def step_once(cls):
        cls.count += 1

        def inner():
            nonlocal_free = 1
            self.hidden = optimizer.step()
            return self.count

        return inner

    def train(self, loader):
        global top
        top = 2
        trainer = Trainer(1)
        for batch in loader:
            self.inherited(); self.missing()
            trainer.inherited()
            free(1, 2)
            self.other.train(1)
        else:
            done = 1
        last = 3
"""


@pytest.fixture(scope="module")
def script():
    return Script(Source(TEXT))


def scope(script, name):
    (found,) = [item for item in script.scopes if item.name == name]
    return found


def names(scope):
    return set(scope.bindings)


def test_scopes_know_their_names_and_kinds(script):
    assert [item.name for item in script.scopes] == [
        *("", "free", "waits", "Base", "inherited", "Trainer", "__init__", "step_once", "inner", "train")
    ]
    assert [item.name for item in script.scopes if item.is_function] == [
        *("free", "waits", "inherited", "__init__", "step_once", "inner", "train")
    ]


def test_parameters_are_bound_in_their_order(script):
    function = scope(script, "free")
    assert function.parameters == ["a", "b", "c"]
    assert all(function.bindings[name][0].is_parameter for name in function.parameters)
    assert scope(script, "Base").parameters == []


def test_a_scope_binds_what_its_statements_give_a_value(script):
    assert names(scope(script, "free")) == {"a", "b", "c", "d", "e", "f"}
    assert names(scope(script, "waits")) == {"self", "g"}
    assert names(scope(script, "Base")) == {"shared"}


def test_attributes_of_self_belong_to_the_class(script):
    assert names(scope(script, "Trainer")) == {"self.accelerator", "self.count", "cls.count", "self.hidden"}


def test_a_global_name_is_not_bound_by_the_function_that_declares_it(script):
    assert names(scope(script, "train")) == {"self", "loader", "trainer", "batch", "done", "last"}


def test_a_name_that_only_counts_up_belongs_to_the_scope_round_it():
    script = Script(Source("def f():\n    n = 0\n\n    def g():\n        optimizer.step()\n        n += 1\n"))
    assert names(scope(script, "g")) == set()
    assert script.home(scope(script, "g"), "n") is scope(script, "f")


@pytest.mark.parametrize(
    ("where", "name", "home"),
    [
        ("free", "d", "free"),
        ("free", "d.attribute", "free"),
        ("free", "top", ""),
        ("free", "unknown", "free"),
        ("inner", "self.count", "Trainer"),
        ("step_once", "cls.count", "Trainer"),
        ("step_once", "shared", "step_once"),
        ("inherited", "shared", "inherited"),
        ("Base", "shared", "Base"),
        ("train", "trainer.count", "train"),
    ],
)
def test_the_home_of_a_key_is_the_scope_that_binds_it(script, where, name, home):
    assert script.home(scope(script, where), name).name == home


def test_a_class_owns_its_methods_and_what_is_nested_in_them(script):
    owners = {item.name: item.owner and item.owner.name for item in script.scopes}
    assert owners == {
        **dict.fromkeys(["", "free", "waits", "Base", "Trainer"]),
        **{"inherited": "Base"},
        **dict.fromkeys(["__init__", "step_once", "inner", "train"], "Trainer"),
    }


def called(script, where, text):
    call = ast.parse(text, mode="eval").body
    found = script.function(scope(script, where), call)
    return found and (found.name, found.owner and found.owner.name)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("free(1)", ("free", None)),
        ("Trainer(1)", ("__init__", "Trainer")),
        ("Base()", None),
        ("unknown()", None),
        ("self.train(1)", ("train", "Trainer")),
        ("self.inherited()", ("inherited", "Base")),
        ("cls.train(1)", ("train", "Trainer")),
        ("self.missing()", None),
        ("self.other.train(1)", None),
        ("trainer.train(1)", ("train", "Trainer")),
        ("trainer.inherited()", ("inherited", "Base")),
        ("loader.train(1)", None),
        ("self[0]()", None),
        ("inner()", None),
    ],
)
def test_a_call_runs_the_function_that_the_file_shows(script, text, found):
    assert called(script, "train", text) == found


def test_a_function_is_found_from_inside_another_but_not_from_the_class(script):
    assert called(script, "step_once", "inner()") == ("inner", "Trainer")
    assert called(script, "inner", "free()") == ("free", None)
    assert called(script, "train", "step_once()") is None


def test_bases_are_followed_but_not_for_ever():
    classes = "".join(f"class C{i}(C{i + 1}): pass\n" for i in range(5)) + "class C5:\n    def f(self): pass\n"
    script = Script(Source(classes + "class Own(Own):\n    def g(self): self.f()\n"))
    assert script._method(script.module.classes["C1"], "f").name == "f"
    assert script._method(script.module.classes["C0"], "f") is None
    assert script._method(script.module.classes["Own"], "f") is None


@pytest.mark.parametrize(
    ("name", "lines"), [("inherited", [45, 46]), ("free", [47]), ("__init__", [43]), ("train", []), ("inner", [])]
)
def test_every_call_of_a_function_is_known(script, name, lines):
    assert [node.lineno for node, _ in script.calls(scope(script, name))] == lines


@pytest.mark.parametrize(
    ("pattern", "texts"),
    [
        ("self\\.missing", ["self.missing()"]),
        ("top = 1", ["top = 1"]),
        ("torch", ["import torch"]),
        ("pass", ["pass"]),
        ("f := b", ["while (f := b): pass"]),
        ("done", ["done = 1"]),
        ("nothing", []),
        ("top", ["top = 1", "d = top", "global top", "top = 2"]),
    ],
)
def test_the_innermost_statement_round_each_match(script, pattern, texts):
    found = script.statements_with(re.compile(pattern))
    assert [ast.unparse(node).replace("\n    ", " ") for node in found] == texts


def test_a_match_in_the_head_of_a_function_is_the_function(script):
    (node,) = script.statements_with(re.compile("def train"))
    assert isinstance(node, ast.FunctionDef)
    assert script.statements_with(re.compile("\n\n\nasync")) == []


def test_two_patterns_are_found_in_the_order_of_the_text(script):
    found = script.statements_with(re.compile("last = 3"), re.compile("top = 1"))
    assert [ast.unparse(node) for node in found] == ["top = 1", "last = 3"]


def at(script, text):
    (node,) = script.statements_with(re.compile(text))
    return node


def test_a_statement_knows_its_loop_and_what_follows_it(script):
    node = at(script, "free\\(1, 2\\)")
    assert isinstance(script.loop(node), ast.For)
    assert [ast.unparse(item) for item in script.places[node].following] == ["self.other.train(1)"]
    assert script.places[node].arm == "body"
    assert script.places[at(script, "done = 1")].arm == "orelse"
    assert script.loop(at(script, "last = 3")) is None
    assert isinstance(script.loop(at(script, "pass")), ast.While)
    assert [type(item) for item in script.ancestors(at(script, "pass"))] == [ast.While, ast.If]


REST = """\
def f(x):
    for a in x:
        if a:
            first
        second
    if x:
        third
    with x:
        last
"""


@pytest.mark.parametrize(
    ("text", "answer"), [("first", True), ("second", False), ("third", True), ("last", False), ("for a", True)]
)
def test_whether_anything_follows_in_the_iteration_or_the_function(text, answer):
    script = Script(Source(REST))
    script.read(script.scopes[1])
    assert script.has_rest(at(script, text)) is answer


def test_a_function_without_a_sign_is_read_when_it_is_asked_for():
    script = Script(Source("def quiet():\n    x = 1\n\n\nquiet()\n"))
    quiet = scope(script, "quiet")
    assert names(quiet) == set()
    assert [ast.unparse(node) for node in script.statements_with(re.compile("quiet\\(\\)\n"))] == ["quiet()"]
    assert script.function(script.module, ast.parse("quiet()", mode="eval").body) is quiet
    assert names(quiet) == {"x"}
    assert [ast.unparse(node) for node in script.statements_with(re.compile("x = 1"))] == ["x = 1"]
    assert script.places[at(script, "x = 1")].arm == "body"


@pytest.mark.parametrize(
    "sign",
    [
        *("optimizer.step()", "accelerator.sync_gradients", "opt.step_was_skipped", "accelerator.prepare(x)"),
        *("a.prepare_optimizer(x)", "Accelerator()", "opt.zero_grad()", "accelerator.backward(loss)", "x.step ()"),
    ],
)
def test_signs_of_training_are_read_at_once(sign):
    script = Script(Source(f"def loud():\n    x = 1\n    {sign}\n\n\ndef quiet():\n    x = 1\n"))
    assert names(scope(script, "loud")) == {"x"}
    assert names(scope(script, "quiet")) == set()


def test_one_method_with_a_sign_has_the_whole_class_read():
    script = Script(
        Source("class A:\n    def quiet(self):\n        self.x = 1\n\n    def loud(self):\n        o.step()\n")
    )
    assert names(scope(script, "A")) == {"self.x"}


def test_lines_are_counted_from_one(script):
    assert script.lines_with(re.compile("import|top = 1")) == [1, 3]


OBJECTS = """\
class State:
    def advance(self): pass

class Other:
    def advance(self): pass

class Keeper:
    inner: State = field(default_factory=State)
    def __init__(self, state):
        self.state = state

def given(state): state.advance()
def again(state): state.advance()
def mixed(state): state.advance()
def unknown(state): state.advance()
def spread(state): state.advance()
def optional(state=None): state.advance()
def annotated(state: State, other): state.advance()
def quoted(state: "State | None" = None): state.advance()
def listed(state: list[State]): state.advance()
def either(state: State | Other): state.advance()
def contradicted(state: Other): state.advance()
def held(keeper): keeper.state.advance()
def field_of(keeper: Keeper): keeper.inner.advance()
def usual(state=Other()): state.advance()
def itself(state): itself(state); state.advance()
def there(state): back(state); state.advance()
def back(state): there(state)

def main(new, **all):
    state = State()
    given(state), again(state=State()), mixed(state), mixed(Other()), unknown(new), spread(**all)
    optional(), optional(None), optional(state), usual(), usual(state), contradicted(state), held(Keeper(state)), itself(state)
    State.advance(state)
"""


@pytest.mark.parametrize(
    ("name", "owner"),
    [
        ("given", "State"),
        ("again", "State"),
        ("mixed", None),
        ("unknown", None),
        ("spread", None),
        ("optional", "State"),
        ("annotated", "State"),
        ("quoted", "State"),
        ("listed", None),
        ("either", None),
        ("contradicted", "State"),
        ("held", "State"),
        ("field_of", "State"),
        ("usual", None),
        ("itself", None),
        ("there", None),
        ("main", "State"),
    ],
)
def test_a_parameter_is_what_all_calls_hand_to_it_or_else_what_it_is_said_to_be(name, owner):
    script = Script(Source(OBJECTS))
    function = script.read(script.module.functions[name])
    found = [item for node in function.node.body for _, item in script.called(node) if item.name == "advance"]
    assert [item.owner.name for item in found] == ([owner] if owner else [])


def test_super_runs_the_method_of_the_base():
    text = "class A:\n    def f(self): pass\nclass B(A):\n    def f(self):\n        super().f()\n        super().g()\n"
    script = Script(Source(text + "def free(): super().f()\n"))
    own = script.module.classes["B"].functions["f"]
    assert script.function(own, ast.parse("super().f()").body[0].value) is script.module.classes["A"].functions["f"]
    assert script.function(own, ast.parse("super().g()").body[0].value) is None
    assert script.function(script.module.functions["free"], ast.parse("super().f()").body[0].value) is None


def test_a_constructor_is_called_by_its_heirs_and_by_super():
    text = "class A:\n    def __init__(self, x): pass\nclass B(A):\n    def f(self): pass\n"
    text += "class C(A):\n    def __init__(self, x): super().__init__(x)\nA(1), B(2), C(3)\nA.__init__(a, 4)\n"
    script = Script(Source(text))
    calls = script.calls(script.module.classes["A"].functions["__init__"])
    assert [ast.unparse(call) for _, call in calls] == ["super().__init__(x)", "A(1)", "B(2)", "A.__init__(a, 4)"]


@pytest.mark.parametrize(
    ("where", "text", "found"),
    [
        ("A", "self.f()", ["A", "C"]),
        ("A", "self.empty()", ["B", "C"]),
        ("A", "self.only()", ["C"]),
        ("A", "self.missing()", ["B"]),
        ("A", "self.missing_too()", ["B", "C"]),
        ("A", "self.refused()", ["A"]),
        ("A", "self.gone()", []),
        ("B", "self.f()", ["A", "C"]),
        ("C", "self.f()", ["C"]),
        ("C", "super().f()", ["A"]),
        ("A", "a.f()", ["A"]),
    ],
)
def test_a_method_of_an_heir_may_run_in_the_place_of_that_of_its_base(where, text, found):
    empty = {"empty": "pass", "only": '"""Nothing."""', "refused": "raise NotImplementedError"}
    methods = "".join(f"    def {name}(self): {body}\n" for name, body in empty.items())
    script = Script(
        Source(
            f"class A:\n{methods}    def f(self): return 1\n    def g(self): a = A(); return a.f()\n"
            "class B(A):\n    def empty(self): return 2\n    def missing(self): return 2\n    def missing_too(self): return 2\n    def g(self): return 3\n"
            "class C(B):\n    def empty(self): return 4\n    def only(self): return 5\n    def f(self): return 6\n"
            "    def refused(self): ...\n    def missing_too(self): return 6\n    def g(self): return 7\n"
        )
    )
    scope = script.read(script.module.classes[where].functions["g"])
    assert [item.owner.name for item in script.runs(scope, ast.parse(text).body[0].value)] == found


def test_the_one_method_that_an_heir_puts_in_the_place_of_nothing_is_the_plain_one():
    text = "class A:\n    def f(self): pass\n    def g(self): self.f()\nclass B(A):\n    def f(self): return 1\n"
    script = Script(Source(text))
    g, f = script.module.classes["A"].functions["g"], script.module.classes["B"].functions["f"]
    assert script.function(g, ast.parse("self.f()").body[0].value) is f
    assert [node.lineno for node, _ in script.calls(f)] == [3]
