"""Bytes that come back as they went in, spans that count characters, edits that touch nothing else."""

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.source import Edit, Source, SourceError

ENCODED = [
    b"x = 1\n",
    b"\xef\xbb\xbfx = 'caf\xc3\xa9'\r\n",
    "# -*- coding: latin-1 -*-\nx = 'café'\n".encode("latin-1"),
    "# vim: set fileencoding=cp1252 :\r\nx = '\u20ac'".encode("cp1252"),
    b"if x:\n\ty = 1\n\x0c\nz = 2",
    b"",
]


@pytest.mark.parametrize("data", ENCODED)
def test_bytes_come_back_as_they_were_read(data):
    assert Source.from_bytes(data).to_bytes() == data


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"x = 1\0", "must not contain NUL bytes"),
        (b'{\n "cells": [],\n "metadata": {},\n "nbformat": 4\n}\n', "this is a notebook: make a script of it"),
        ("# coding: utf-8\nx = 'é'".encode("latin-1"), "not utf-8 text at byte 21: invalid continuation byte"),
        (b"# coding: nonsense\nx = 1", "the encoding of the file cannot be used: unknown encoding: nonsense"),
    ],
)
def test_what_is_no_text_is_an_error_that_says_why(data, why):
    with pytest.raises(SourceError, match=why):
        Source.from_bytes(data)


def test_a_syntax_error_knows_its_line():
    with pytest.raises(SourceError) as caught:
        _ = Source.from_bytes(b"x = 1\ny = (\n").tree
    assert caught.value.line == 2


def test_code_that_is_nested_too_deep_to_be_read_is_an_error():
    with pytest.raises(SourceError, match=r"^(the file cannot be parsed|syntax error): "):
        _ = Source.from_bytes(b"x = " + b"-" * 200_000 + b"1\n").tree


@pytest.mark.parametrize(("start", "end"), [(-1, 2), (5, 3)])
def test_an_edit_that_runs_backwards_is_refused(start, end):
    with pytest.raises(ValueError, match=rf"from start to a later end, got {start} to {end}"):
        Edit(start, end, "")


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_spans_count_characters_whatever_the_line_ends(newline):
    source = Source(newline.join(["x = 'ééé'; y = 2", "if x:", "    z = 'ü' + y"]))
    second, inner = source.tree.body[1], source.tree.body[2].body[0]
    assert source.segment(second) == "y = 2"
    assert source.segment(inner) == "z = 'ü' + y"
    assert source.indentation(inner) == "    "
    assert source.newline == newline


def test_line_starts_agree_for_both_ways_of_finding_them():
    text = "a\nb\n\nc"
    assert Source(text).line_starts == [0, 2, 4, 5]
    assert Source(text.replace("\n", "\r\n")).line_starts == [0, 3, 6, 8]


def test_edits_are_made_at_once_and_in_the_order_they_are_given():
    source = Source("abc")
    assert source.edited([Edit(1, 1, "1"), Edit(1, 1, "2"), Edit(2, 3, "x")]).text == "a12bx"


def test_edits_that_overlap_are_refused():
    with pytest.raises(ValueError, match="overlap"):
        Source("abcd").edited([Edit(0, 3, ""), Edit(2, 4, "")])


@given(
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=40),
    st.integers(0, 40),
    st.text(max_size=5),
)
def test_an_insertion_leaves_both_sides_as_they_were(text, at, more):
    at = min(at, len(text))
    assert Source(text).edited([Edit(at, at, more)]).text == text[:at] + more + text[at:]


@given(st.lists(st.sampled_from(["x = 'é'", "if x:\n    y = 'ü'", "def f():\n\tpass", "# ß", ""]), max_size=8))
def test_every_node_lies_where_its_span_says(parts):
    source = Source("\n".join(parts))
    for node in ast.walk(source.tree):
        if isinstance(node, ast.stmt):
            assert ast.dump(ast.parse(source.segment(node)).body[0]) == ast.dump(node)
