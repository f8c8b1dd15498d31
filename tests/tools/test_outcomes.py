"""Each loop of the collection: its whole report and every changed line. UPDATE_OUTCOMES=1 writes them anew.

The other tests say what must be right. These say what is there, so that no change of a rule goes unseen: read the
difference that an update makes as you would read a patch.
"""

from __future__ import annotations

import difflib
import os
from pathlib import Path

import pytest

from tools.rewrite import Options, Rewrite, rewrite

IDIOMS = Path(__file__).parent.parent / "idioms"
OUTCOMES = IDIOMS / "outcomes"
LOOPS = {
    path.stem: path
    for folder in (IDIOMS, IDIOMS / "own")
    for path in sorted(folder.glob("[0-9]*.py"))
    if not path.stem.endswith(".expected")
}
COUNTED = {"120_counted_optimizer": "self.opt"}


def outcome(result: Rewrite) -> str:
    """The sites of a rewrite, then its changed lines with one line round them."""
    lines = []
    for site in result.sites:
        place = f"{site.line}:{site.col}" + (f" -> {site.new_line}" if site.new_line is not None else "")
        lines += [f"{place} {site.outcome.value} {site.code} ({site.kind})", f"    {site.message}"]
    texts = [data.decode().splitlines() for data in (result.before, result.after)]
    return "\n".join([*lines, *difflib.unified_diff(*texts, "before", "after", n=1, lineterm="")]) + "\n"


def is_recorded(path: Path, text: str) -> bool:
    """Whether a file holds just this text; it does after an update."""
    if os.environ.get("UPDATE_OUTCOMES"):
        path.write_text(text, encoding="utf-8")
    return path.read_text(encoding="utf-8") == text


@pytest.mark.parametrize("name", LOOPS)
def test_the_report_and_the_changed_lines_are_the_recorded_ones(name: str) -> None:
    text = outcome(rewrite(LOOPS[name].read_bytes(), Options(counted_optimizer=COUNTED.get(name))))
    assert is_recorded(OUTCOMES / f"{name}.txt", text), text


def test_every_record_belongs_to_a_loop() -> None:
    assert {path.stem for path in OUTCOMES.iterdir()} == set(LOOPS)
