"""A file that only a newer Python reads is told from one that none reads."""

from __future__ import annotations

import ast
import sys

import pytest

from tools.syntax import newer_syntax

NEWER = {
    (3, 11): ["try:\n    x()\nexcept* ValueError:\n    pass\n"],
    (3, 12): ["type Pair = tuple[int, int]\n", "def f[T](x: T): ...\n", "class A[T]: ...\n", "x = f'{d['k']}'\n"],
    (3, 13): ["type A[T = int] = list[T]\n", "class A[T=int]: ...\n"],
    (3, 14): ["x = t'{y}'\n", "try:\n    x()\nexcept A, B:\n    pass\n"],
}


@pytest.mark.parametrize(("version", "text"), [(version, text) for version in NEWER for text in NEWER[version]])
def test_each_newer_construct_is_named_with_the_python_that_it_needs(version, text):
    line = next(i for i, part in enumerate(text.split("\n"), 1) if part.lstrip()[:4] not in ("try:", "x()"))
    said = newer_syntax(text.encode(), line, (version[0], version[1] - 1))
    assert said is not None
    assert f"needs Python 3.{version[1]}, and this is 3.{version[1] - 1}" in said


@pytest.mark.parametrize(("version", "text"), [(version, text) for version in NEWER for text in NEWER[version]])
def test_the_line_of_the_real_error_is_enough(version, text):
    if version <= sys.version_info[:2]:
        ast.parse(text)  # this Python is new enough: the sample must then be right
        return
    with pytest.raises(SyntaxError) as error:
        ast.parse(text)
    assert newer_syntax(text.encode(), error.value.lineno) is not None


@pytest.mark.parametrize("text", ["if x\n", "def f(:\n", "print 'a'\n", "x = f'{a['\n", "except:\n"])
def test_what_no_python_reads_is_not_called_newer(text):
    assert newer_syntax(text.encode(), 1, sys.version_info[:2]) is None


def test_an_error_without_a_line_tells_nothing():
    assert newer_syntax(b"class A[T]: ...\n", None, (3, 10)) is None
