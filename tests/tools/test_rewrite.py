"""Bytes in, bytes out: every byte outside the edits stays, and what fails its own check is taken back."""

import gc
import re
from pathlib import Path

import pytest

from tools.codes import CODES
from tools.loop.blocks import Role
from tools.rewrite import is_relevant, rewrite
from tools.site import Outcome
from tools.source import Edit, SourceError

LOOP = """\
from accelerate import Accelerator


def main(model, optimizer, loader):
    accelerator = Accelerator(gradient_accumulation_steps=2)
    optimizer = accelerator.prepare(optimizer)
    global_step = 0
    for batch in loader:
        with accelerator.accumulate(model):
            accelerator.backward(model(batch))
            optimizer.step()
        if accelerator.sync_gradients:  # größer
            global_step += 1
    return global_step
"""
GATED = LOOP.replace(
    "if accelerator.sync_gradients:", "if accelerator.sync_gradients and not accelerator.optimizer_step_was_skipped:"
)
IDIOMS = Path(__file__).parent.parent / "idioms"


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("indent", ["    ", "\t", "  "])
@pytest.mark.parametrize("end", ["\n", ""])
def test_line_ends_indentation_and_a_missing_last_line_end_stay(newline, indent, end):
    def shaped(text):
        return (text.rstrip("\n") + end).replace("    ", indent).replace("\n", newline).encode()

    assert rewrite(shaped(LOOP)).after == shaped(GATED)


@pytest.mark.parametrize("codec", ["latin-1", "cp1252", "utf-8"])
def test_declared_encodings_and_the_byte_order_mark_stay(codec):
    head = f"# -*- coding: {codec} -*-\n"
    assert rewrite((head + LOOP).encode(codec)).after == (head + GATED).encode(codec)
    mark = b"\xef\xbb\xbf"
    assert rewrite(mark + LOOP.encode()).after == mark + GATED.encode()


def test_form_feeds_and_odd_spaces_stay():
    odd = LOOP.replace("\n\ndef", "\n\x0c\ndef").replace("optimizer.step()", "optimizer . step ( )  ;   pass")
    gated = GATED.replace("\n\ndef", "\n\x0c\ndef").replace("optimizer.step()", "optimizer . step ( )  ;   pass")
    assert rewrite(odd.encode()).after == gated.encode()


def test_a_file_without_a_site_comes_back_as_it_is():
    data = b"x = 1  \r\n\ty = 2\n".replace(b"\ty", b"y")
    result = rewrite(data)
    assert result.before == result.after == data
    assert result.sites == ()


@pytest.mark.parametrize("data", [b"x = (\n", LOOP.encode() + b"\n    x = (", b"\0", b"print 'x'\n"])
def test_what_does_not_parse_is_an_error_with_or_without_sites(data):
    with pytest.raises(SourceError):
        rewrite(data)


def test_the_place_before_and_after_is_reported():
    site = next(site for site in rewrite(("\n" + LOOP).encode()).sites if site.code == "gated")
    assert (site.line, site.col, site.outcome) == (13, 9, Outcome.REWRITTEN)
    assert site.new_line == 13
    two = LOOP.replace("            optimizer.step()", "            window += 1.0\n            optimizer.step()")
    two = two.replace("            global_step += 1\n", "            global_step += 1\n            window = 0.0\n")
    two += LOOP.replace("def main", "def other").split("\n\n\n", 1)[1]
    lines = [site.new_line for site in rewrite(two.encode()).sites if site.code == "gated"]
    text = rewrite(two.encode()).after.decode().splitlines()
    assert all("optimizer_step_was_skipped" in text[line - 1] for line in lines)
    assert len(lines) == 2


def test_only_the_rules_that_are_asked_for_run():
    assert rewrite(LOOP.encode(), rules=()).after == LOOP.encode()


def test_an_edit_that_reaches_too_far_is_taken_back():
    def careless(work):
        work.edits.append(Edit(work.source.text.index("    return global_step"), len(work.source.text), ""))
        work.rewritten(work.source.tree.body[0], "bookkeeping block", "gated", "done")

    result = rewrite(LOOP.encode(), rules=(careless,))
    assert result.after == LOOP.encode()
    assert [(site.code, site.outcome) for site in result.sites] == [("internal", Outcome.REFUSED)]


def test_an_edit_that_breaks_the_syntax_is_taken_back():
    def broken(work):
        at = work.source.text.index("for batch")
        work.edits.append(Edit(at, at, "(("))
        work.rewritten(work.source.tree.body[0], "bookkeeping block", "gated", "done")

    result = rewrite(LOOP.encode(), rules=(broken,))
    assert result.after == LOOP.encode()
    assert [site.code for site in result.sites] == ["internal"]


def test_the_collector_is_left_as_it_was_found():
    assert gc.isenabled()
    with pytest.raises(SourceError):
        rewrite(LOOP.encode() + b"(")
    assert gc.isenabled()
    gc.disable()
    try:
        rewrite(LOOP.encode())
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_a_long_test_is_broken_a_clause_a_line_and_a_short_one_is_not():
    guard = "if accelerator.sync_gradients and accelerator.is_main_process:"
    short = rewrite(LOOP.replace("if accelerator.sync_gradients:  # größer", guard).encode()).after.decode()
    clauses = (
        "accelerator.sync_gradients and not accelerator.optimizer_step_was_skipped and accelerator.is_main_process"
    )
    assert f"        if {clauses}:\n" in short
    longer = guard.replace("is_main_process:", "is_main_process and ready:")
    broken = rewrite(LOOP.replace("if accelerator.sync_gradients:  # größer", longer).encode()).after.decode()
    assert (
        "        if (\n"
        "            accelerator.sync_gradients\n"
        "            and not accelerator.optimizer_step_was_skipped\n"
        "            and accelerator.is_main_process\n"
        "            and ready\n"
        "        ):\n"
    ) in broken


def test_every_code_that_is_reported_is_in_the_table_and_none_is_told_twice():
    for path in [*IDIOMS.glob("[0-9]*.py"), *(IDIOMS / "own").glob("[0-9]*.py")]:
        sites = rewrite(path.read_bytes()).sites
        assert {site.code for site in sites} <= set(CODES), path.name
        assert len(set(sites)) == len(sites), path.name


def test_every_code_in_the_rules_is_in_the_table_and_every_code_of_the_table_is_in_use():
    tools = Path(__file__).parent.parent.parent / "tools"
    text = "".join(path.read_text() for path in sorted(tools.rglob("*.py")) if path.name != "codes.py")
    used = set(re.findall(r'"([a-z]+(?:-[a-z]+)*)"', text))
    steps = {f"trainer-{name}" for name in used}  # the series of Transformers and Accelerate: one code a patch
    assert set(CODES) <= used | steps
    refused = set(re.findall(r'Refusal\(\s*"([a-z-]+)"', text))
    assert refused <= set(CODES)


def test_every_kind_of_place_has_a_name_of_its_own():
    assert len({role.value for role in Role}) == len(Role)


@pytest.mark.parametrize("text", ["global_step += 1\n", "accelerate = 1\nx.step()\n", "x.backward()\ny.step()\n"])
def test_files_that_no_rule_can_touch_are_told_apart_before_they_are_parsed(text):
    assert not is_relevant(text)
