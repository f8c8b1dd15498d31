"""Walks over statements and expressions that stop at other functions."""

import ast

import pytest

from tools.loop.tree import assigned, call_of, calls_of, expressions, headers, inner_blocks, is_loop, walk, within

TEXT = """\
if a:
    s1
    for i in b:
        s2
    else:
        s3
elif c:
    s4
else:
    with d:
        s5
try:
    s6
except E:
    s7
except F:
    s8
else:
    s9
finally:
    s10
match x:
    case 1:
        s11
    case _:
        s12
while e:
    s13
def f():
    hidden
class C:
    hidden
s14
"""


def statements(text):
    return ast.parse(text).body


def test_all_statements_come_in_the_order_of_the_text_without_those_of_functions_and_classes():
    plain = [ast.unparse(node) for node in within(statements(TEXT)) if isinstance(node, ast.Expr)]
    assert plain == [f"s{i}" for i in range(1, 15)]
    lines = [node.lineno for node in within(statements(TEXT))]
    assert lines == sorted(lines)


def test_the_arms_of_a_statement_have_names():
    arms = {type(node).__name__: [arm for arm, _ in inner_blocks(node)] for node in statements(TEXT)}
    assert arms == {
        "If": ["body", "orelse"],
        "Try": ["body", "handlers", "handlers", "orelse", "finalbody"],
        "Match": ["cases", "cases"],
        "While": ["body"],
        "FunctionDef": [],
        "ClassDef": [],
        "Expr": [],
    }


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("if a and b: c", ["a and b"]),
        ("for a in b: c", ["a", "b"]),
        ("while a: b", ["a"]),
        ("with a as b, c: d", ["a", "c"]),
        ("a = b = c", ["a", "b", "c"]),
        ("a += b", ["a", "b"]),
        ("return a", ["a"]),
        ("match a:\n    case 1: b", ["a"]),
        ("try: a\nexcept E: b", []),
        ("def f(a=b): c", []),
        ("class A(b): c", []),
    ],
)
def test_the_expressions_of_a_statement_itself(text, found):
    assert [ast.unparse(item) for item in headers(statements(text)[0])] == found


def test_every_node_of_an_expression_but_not_the_inside_of_a_lambda():
    (node,) = statements("f(a, b=c.d)[lambda: hidden] = [e]")
    names = [item.id for item in expressions(node) if isinstance(item, ast.Name)]
    assert names == ["f", "a", "c", "e"]
    assert expressions(node) is expressions(node)
    assert [item.id for item in walk(node.targets[0]) if isinstance(item, ast.Name)] == ["f", "a", "c", "hidden"]
    assert [ast.unparse(item) for item in calls_of(node)] == ["f(a, b=c.d)"]


def test_a_dictionary_that_takes_in_another_has_no_key_there():
    (node,) = statements("f({**a, b: c})")
    assert [item.id for item in walk(node.value) if isinstance(item, ast.Name)] == ["f", "b", "a", "c"]
    assert [item.id for item in expressions(node) if isinstance(item, ast.Name)] == ["f", "b", "a", "c"]


@pytest.mark.parametrize(
    ("text", "call"),
    [
        ("f()", "f()"),
        ("a = f()", "f()"),
        ("a: int = f()", "f()"),
        ("await f()", "f()"),
        ("a = await f()", "f()"),
        ("a: int", None),
        ("a += f()", None),
        ("f() + 1", None),
        ("f", None),
    ],
)
def test_the_call_that_a_statement_consists_of(text, call):
    (node,) = statements(f"async def g():\n    {text}")[0].body
    assert (call_of(node) and ast.unparse(call_of(node))) == call


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        ("a = 1", [("a", "1")]),
        ("a = b = 1", [("a", "1"), ("b", "1")]),
        ("a: int = 1", [("a", "1")]),
        ("a: int", []),
        ("a, b = 1, 2", [("a", "1"), ("b", "2")]),
        ("[a, b] = (1, 2)", [("a", "1"), ("b", "2")]),
        ("a, b = [1, 2]", [("a", "1"), ("b", "2")]),
        ("a, b = c", [("(a, b)", "c")]),
        ("a = 1, 2", [("a", "(1, 2)")]),
        ("a, b = 1, 2, 3", [("(a, b)", "(1, 2, 3)")]),
        ("a += 1", []),
        ("for a in b: pass", []),
    ],
)
def test_targets_with_their_values(text, pairs):
    assert [(ast.unparse(target), ast.unparse(value)) for target, value in assigned(statements(text)[0])] == pairs


@pytest.mark.parametrize(
    ("text", "answer"),
    [("for a in b: pass", True), ("while a: pass", True), ("async for a in b: pass", True), ("if a: pass", False)],
)
def test_a_loop_is_one(text, answer):
    (node,) = statements(f"async def f():\n    {text}")[0].body
    assert is_loop(node) is answer
