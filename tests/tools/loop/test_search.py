"""Where patterns match in the text of a file."""

from __future__ import annotations

import re

import pytest

from tools.loop.calls import all_reached, reached
from tools.loop.script import Script
from tools.loop.search import Search, has_line
from tools.source import Source

TEXT = "step()\ncolor = steps\n\ncolour.step (1)\nSTEP = asteps\n"


@pytest.mark.parametrize(
    "pattern",
    [
        r"step\s*\(",
        r"steps?",
        r"steps*\b",
        r"colou?r",
        r"colo{1}u{0,1}r",
        r"colour|steps",
        r"co(?:lor|lour)",
        r"step(?<!\wstep)",
        r"(?<!\w)step",
        r"\bstep\b",
        r"step\(\)",
        r"=",
        r"[sS]tep",
        r"missing\s",
        r"asteps\b|color\b",
        r"STEP\b",
    ],
)
@pytest.mark.parametrize("flags", [0, re.IGNORECASE])
def test_a_pattern_is_found_wherever_it_matches(pattern, flags):
    compiled = re.compile(pattern, flags)
    search = Search(Source(TEXT))
    assert search.offsets(compiled) == [match.start() for match in compiled.finditer(TEXT)]
    assert search.lines(compiled) == [TEXT.count("\n", 0, offset) + 1 for offset in search.offsets(compiled)]


@pytest.mark.parametrize(
    ("first", "last", "found"), [(1, 2, False), (1, 3, True), (3, 3, True), (4, 6, False), (8, 9, False)]
)
def test_a_span_has_a_line_that_lies_in_it(first, last, found):
    assert has_line([3, 7], first, last) is found


def test_lines_that_call_a_name_have_a_bracket_or_space_behind_it():
    assert Search(Source(TEXT)).lines_calling("step") == [1, 4]
    assert Search(Source("stepstep()\nstep\\\n()\n(step\n())\nstep.x\nstep")).lines_calling("step") == [1, 2, 4]


@pytest.mark.parametrize("space", ["", " ", "\t", "\f", " \t", "\\\n", "\\\r\n", "\\\r"])
def test_a_call_is_seen_whatever_space_python_allows_before_its_bracket(space):
    text = f"def finish():\n    pass\n\n\nfinish{space}()\n"
    script = Script(Source(text))
    assert len(list(all_reached(script, script.module.node.body[-1]))) == 1
    bracketed = Script(Source(text.replace(f"\nfinish{space}()", "\n(finish\r())")))
    assert len(list(all_reached(bracketed, bracketed.module.node.body[-1]))) == 1


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_lines_in_other_letters(newline):
    assert Search(Source(newline.join(["a", "b = 'ä'", "c", "ﬁ()"]))).lines_in_other_letters == [2, 4]
    assert Search(Source("a\nb = 'ä'")).lines_in_other_letters == []


@pytest.mark.parametrize("call", ["finish()", "ﬁnish()"])
@pytest.mark.parametrize("name", ["finish", "ﬁnish"])
def test_a_call_is_seen_however_its_letters_are_written(name, call):
    script = Script(Source(f"def {name}():\n    pass\n\n\n{call}\n"))
    found = reached(script, script.module.node.body[-1])
    assert found is not None
    assert found.function.name == "finish"
