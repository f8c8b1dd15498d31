"""The comparison explains what an edit says and finds everything else."""

import pytest

from tools.compare import unaccounted
from tools.source import Edit, Source

TEXT = '''\
import os


def main(accelerator):
    for batch in range(3):
        if accelerator.sync_gradients:
            step = 1
            note = """
    kept
"""
        else:
            step = 2
    return step


print(os.name)
'''


def compare(*edits, text=TEXT):
    before = Source(text)
    return unaccounted(before, before.edited(edits), edits)


def at(word, text=TEXT):
    return text.index(word)


def test_no_edit_leaves_nothing_to_explain():
    assert compare() == []


def test_a_clause_in_a_test_is_explained():
    place = at(":\n            step = 1")
    assert compare(Edit(place, place, " and x")) == []


def test_a_new_arm_and_a_new_statement_are_explained():
    text = TEXT.replace("        else:\n            step = 2\n", "")
    place = at("\n    return step", text)
    assert compare(Edit(place, place, "\n        elif x:\n            step = 0"), text=text) == []
    place = at("    return step")
    assert compare(Edit(place, place, "    done = True\n")) == []


def test_a_test_round_statements_is_explained():
    line = at("            step = 2")
    edits = (Edit(line, line, "            if x:\n"), Edit(line, line, "    "))
    assert compare(*edits) == []


def test_a_statement_that_moves_to_another_block_is_found():
    place = at("    return step")
    assert compare(Edit(place, place, "    "))


def test_text_inside_a_string_that_was_indented_is_found():
    lines = ["            step = 1", "            note", "    kept", '"""\n        else']
    edits = [Edit(at(lines[0]), at(lines[0]), "            if x:\n"), *(Edit(at(w), at(w), "    ") for w in lines)]
    assert any("no edit is meant to change" in fault for fault in compare(*edits))


def test_a_statement_that_was_swallowed_is_found():
    place = at("            step = 2")
    assert compare(Edit(place, place, "            pass  # "))


def test_text_that_differs_from_the_edits_is_found():
    before = Source("x = 1\n")
    assert unaccounted(before, Source("x = 2\n"), [])


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_line_ends_make_no_difference(newline):
    text = TEXT.replace("\n", newline)
    place = at(f":{newline}            step = 1", text)
    assert compare(Edit(place, place, " and x"), text=text) == []
    place = at("    return step", text)
    assert compare(Edit(place, place, "    "), text=text)


def test_match_and_try_are_looked_into():
    text = "try:\n    x = 1\nexcept OSError:\n    x = 2\nmatch x:\n    case 1:\n        y = 1\n    case _:\n        y = 2\n"
    place = at("        y = 2", text)
    assert compare(Edit(place, place, "        z = 1\n"), text=text) == []
    place = at("    x = 2", text)
    assert compare(Edit(place, place, "    pass\ntry:\n    pass\nexcept ValueError:\n"), text=text)
