"""Places are found by shape, exactly once, and edits keep all other bytes."""

from __future__ import annotations

import ast

import pytest

from tools.source import Source
from tools.trainer.shape import (
    ShapeError,
    above,
    after,
    before,
    class_named,
    docstring_of,
    docstring_tail,
    entry_end,
    find,
    header,
    imported,
    instead,
    method,
    method_after,
    siblings,
    statement,
    without_test,
)

TEXT = '''\
import ast
import zlib


class Thing:
    """A thing.

    Args:
        size (`int`):
            How large
            it is.
        colour(`str`, *optional*):
            Its colour.
    """

    def run(self, items):
        """
        Runs.
        """
        total = 0
        # one by one
        for item in range(0, items):
            total += item  # so far
        if total > 3:
            # large
            total = 3

        return total
'''
SOURCE = Source(TEXT)
RUN = method(SOURCE, "Thing", "run")


def edited(*edits) -> str:
    return SOURCE.edited(edits).text


def test_any_stands_for_every_expression_and_dots_for_every_body():
    assert isinstance(find(RUN, "for item in range(ANY, ANY): ...", "run"), ast.For)
    assert find(RUN, "total += ANY", "run").lineno == 23


def test_a_pattern_must_match_as_a_whole():
    for pattern in ("for item in range(ANY): ...", "for thing in range(ANY, ANY): ...", "total -= ANY", "total = 4"):
        with pytest.raises(ShapeError, match="exactly one"):
            find(RUN, pattern, "run")


def test_an_ambiguous_pattern_is_refused_with_a_count_and_a_line():
    with pytest.raises(ShapeError, match="exactly one `total = ANY` in run, found 2") as caught:
        find(RUN, "total = ANY", "run")
    assert caught.value.line == RUN.lineno


def test_a_statement_is_not_found_inside_another_expression():
    source = Source("x = step()\nstep()\n")
    assert statement(source.tree, "step()", "the module").lineno == 2


def test_missing_classes_and_methods_are_refused():
    with pytest.raises(ShapeError, match="class `Other`"):
        class_named(SOURCE, "Other")
    with pytest.raises(ShapeError, match="method `walk`"):
        method(SOURCE, "Thing", "walk")


def test_siblings_are_the_body_that_a_statement_stands_in():
    loop = find(RUN, "for item in range(ANY, ANY): ...", "run")
    body, index = siblings(RUN, loop)
    assert body is RUN.body
    assert body[index] is loop
    with pytest.raises(ShapeError):
        siblings(loop, RUN)


def test_lines_are_put_around_a_statement_at_its_indentation():
    loop = find(RUN, "for item in range(ANY, ANY): ...", "run")
    assert edited(before(SOURCE, loop, "a = 1\n")) == TEXT.replace(
        "        for item", "        a = 1\n        for item"
    )
    assert edited(above(SOURCE, loop, "a = 1\n")) == TEXT.replace("        # one", "        a = 1\n        # one")
    behind = "# so far\n"
    assert edited(after(SOURCE, loop, "a = 1\n")) == TEXT.replace(behind, f"{behind}        a = 1\n")


def test_a_node_and_a_header_are_replaced_and_the_body_stays():
    loop = find(RUN, "for item in range(ANY, ANY): ...", "run")
    assert edited(instead(SOURCE, loop.iter, "items")) == TEXT.replace("range(0, items)", "items")
    assert edited(header(SOURCE, loop, "while True:\n")) == TEXT.replace("for item in range(0, items):", "while True:")


def test_a_header_with_a_comment_is_refused():
    source = Source("for x in y:  # why\n    pass\n")
    with pytest.raises(ShapeError, match="comment"):
        header(source, source.tree.body[0], "while True:\n")


def test_a_test_is_taken_away_and_its_body_moved_out():
    block = find(RUN, "if total > 3: ...", "run")
    moved = "        # large\n        total = 3\n"
    assert edited(without_test(SOURCE, block)) == TEXT.replace(
        "        if total > 3:\n            # large\n            total = 3\n", moved
    )


def test_a_test_with_an_else_is_not_taken_away():
    source = Source("if a:\n    b\nelse:\n    c\n")
    with pytest.raises(ShapeError, match="else"):
        without_test(source, source.tree.body[0])


def test_an_import_is_put_in_its_place_once():
    assert edited(imported(SOURCE, "math")) == TEXT.replace("import zlib", "import math\nimport zlib")
    for module, reason in (("ast", "not be imported yet"), ("zz", "behind which")):
        with pytest.raises(ShapeError, match=reason):
            imported(SOURCE, module)


def test_a_method_is_put_behind_another_with_a_blank_line():
    assert edited(method_after(SOURCE, RUN, "def stop(self):\n    pass\n")) == TEXT + (
        "\n    def stop(self):\n        pass\n"
    )


@pytest.mark.parametrize(("name", "last"), [("size", "it is.\n"), ("colour", "Its colour.\n")])
def test_the_end_of_a_docstring_entry_is_found(name, last):
    end, indent = entry_end(SOURCE, class_named(SOURCE, "Thing"), name)
    assert TEXT[:end].endswith(last)
    assert indent == " " * 8


def test_an_entry_that_is_not_there_is_refused():
    with pytest.raises(ShapeError, match="must describe `weight` exactly once"):
        entry_end(SOURCE, class_named(SOURCE, "Thing"), "weight")


def test_lines_are_added_to_a_docstring():
    assert edited(docstring_tail(SOURCE, RUN, "More.\n")) == TEXT.replace("Runs.\n", "Runs.\n        More.\n")
    source = Source('def f():\n    """One line."""\n')
    with pytest.raises(ShapeError, match="line of its own"):
        docstring_tail(source, source.tree.body[0], "More.\n")


def test_line_ends_of_the_file_are_kept():
    source = Source(TEXT.replace("\n", "\r\n"))
    run = method(source, "Thing", "run")
    loop = find(run, "for item in range(ANY, ANY): ...", "run")
    text = source.edited([before(source, loop, "a = 1\n"), method_after(source, run, "def g(self):\n    pass\n")]).text
    assert "\n" not in text.replace("\r\n", "")


def test_a_block_with_a_line_that_stands_further_out_is_not_moved():
    source = Source("if x:\n    text = " + '"""\none\n"""\n')
    with pytest.raises(ShapeError, match="indented less than the block"):
        without_test(source, source.tree.body[0])


def test_a_class_or_function_without_a_docstring_is_refused():
    source = Source("def f():\n    return 1\n")
    with pytest.raises(ShapeError, match="`f` must have a docstring") as refused:
        docstring_of(source.tree.body[0])
    assert refused.value.line == 1
