"""What statements give a value to, and from which part of a value."""

import ast

import pytest

from tools.loop.bindings import bound_by


def bound(text):
    """Each key with the text of its value and its place in it."""
    (node,) = ast.parse(text).body
    return [(name, item.value and ast.unparse(item.value), item.position) for name, item in bound_by(node)]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a = 1", [("a", "1", -1)]),
        ("a = b = 1", [("a", "1", -1), ("b", "1", -1)]),
        ("a.b = 1", [("a.b", "1", -1)]),
        ("a['b'] = 1", [("a['b']", "1", -1)]),
        ("a[i] = 1", []),
        ("a: int = 1", [("a", "1", -1)]),
        ("a += 1", [("a", None, -1)]),
        ("a, b = 1, 2", [("a", "1", -1), ("b", "2", -1)]),
        ("[a, b] = [1, 2]", [("a", "1", -1), ("b", "2", -1)]),
        ("a, b = f()", [("a", "f()", 0), ("b", "f()", 1)]),
        ("a, b, c = 1, 2", [("a", "(1, 2)", 0), ("b", "(1, 2)", 1), ("c", "(1, 2)", 2)]),
        ("a, *b = 1, 2", [("a", "(1, 2)", 0), ("b", "(1, 2)", 1)]),
        ("a, b = 1, *c", [("a", "(1, *c)", 0), ("b", "(1, *c)", 1)]),
        ("a, (b, c) = 1, (2, 3)", [("a", "1", -1), ("b", "2", -1), ("c", "3", -1)]),
        ("a, (b, c) = f()", [("a", "f()", 0), ("b", "f()", 0), ("c", "f()", 1)]),
        ("for a in x: pass", [("a", "x", 0)]),
        ("for a.b in x: pass", [("a.b", "x", 0)]),
        ("for a, b in (x, y): pass", [("a", "(x, y)", 0), ("b", "(x, y)", 1)]),
        ("with f() as a, g(), h() as b.c: pass", [("a", "f()", -1), ("b.c", "h()", -1)]),
        ("if (a := f()) > 1: pass", [("a", "f()", -1)]),
        ("while not (a := f()): pass", [("a", "f()", -1)]),
        ("if a: b = 1", []),
        ("f(a)", []),
    ],
)
def test_each_target_with_its_value(text, found):
    assert bound(text) == found


@pytest.mark.parametrize("text", ["async for a in x: pass", "async with f() as a: pass"])
def test_asynchronous_statements_bind_as_well(text):
    (function,) = ast.parse(f"async def g():\n    {text}\n").body
    assert [name for name, _ in bound_by(function.body[0])] == ["a"]


def test_a_parameter_is_none_of_these():
    ((_, binding),) = bound_by(ast.parse("a = 1").body[0])
    assert not binding.is_parameter
