"""Each loop of the collection: its whole report and every changed line. UPDATE_OUTCOMES=1 writes them anew.

The other tests say what must be right. These say what is there, so that no change of a rule goes unseen: read the
difference that an update makes as you would read a patch.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tools.rewrite import Options, rewrite
from tools.scripts import extend
from tools.site import Outcome

IDIOMS = Path(__file__).parent.parent / "idioms"
OUTCOMES = IDIOMS / "outcomes"
LOOPS = {
    path.stem: path
    for folder in (IDIOMS, IDIOMS / "own")
    for path in sorted(folder.glob("[0-9]*.py"))
    if not path.stem.endswith(".expected")
}
COUNTED = {"120_counted_optimizer": "self.opt"}


@pytest.mark.parametrize("name", LOOPS)
def test_the_report_and_the_changed_lines_are_the_recorded_ones(name, outcome):
    text = outcome(rewrite(LOOPS[name].read_bytes(), Options(counted_optimizer=COUNTED.get(name))))
    record = OUTCOMES / f"{name}.txt"
    if os.environ.get("UPDATE_OUTCOMES"):
        record.write_text(text, encoding="utf-8")
    assert record.read_text(encoding="utf-8") == text


@pytest.mark.parametrize("follow", [None, True, False])
@pytest.mark.parametrize("name", LOOPS)
def test_what_the_tools_wrote_is_neither_rewritten_nor_refused_when_it_is_read_again(name, follow):
    options = Options(counted_optimizer=COUNTED.get(name), follow_arguments=follow)
    once = rewrite(LOOPS[name].read_bytes(), options)
    known = {site.code for site in once.sites if site.outcome is Outcome.REFUSED}
    for written in (once.after, extend(once.after).after):
        again = rewrite(written, options)
        assert again.after == written
        assert [site for site in again.sites if site.outcome is Outcome.REWRITTEN] == []
        assert {site.code for site in again.sites if site.outcome is Outcome.REFUSED} <= known


def test_every_record_belongs_to_a_loop():
    assert {path.stem for path in OUTCOMES.iterdir()} == set(LOOPS)
