"""Counts in plain Python."""

from __future__ import annotations

import json

import pytest

from accelerate_ext.ledger import Ledger


def test_a_ledger_counts_what_it_is_told():
    ledger = Ledger()
    for skipped in (False, True, True, False, True):
        ledger.record(skipped)
    assert ledger == Ledger(attempted=5, applied=2, skipped=3, skipped_in_a_row=1)


def test_state_goes_through_json():
    ledger = Ledger(attempted=5, applied=2, skipped=3, skipped_in_a_row=1)
    other = Ledger()
    other.load_state_dict(json.loads(json.dumps(ledger.state_dict())))
    assert other == ledger


GOOD = {"attempted": 5, "applied": 2, "skipped": 3, "skipped_in_a_row": 1}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"applied": -1}, "`applied` must be a whole number from 0 up, got -1"),
        ({"applied": 2.0}, "`applied` must be a whole number from 0 up, got 2.0"),
        ({"skipped": True}, "`skipped` must be a whole number from 0 up, got True"),
        ({"attempted": None}, "`attempted` must be a whole number from 0 up, got None"),
        ({"attempted": 6}, r"`attempted` must be `applied` \+ `skipped`, got 6 for 2 \+ 3"),
        ({"skipped_in_a_row": 4}, "`skipped_in_a_row` must not exceed `skipped`, got 4"),
        ({"applied": "2", "skipped": "3"}, "`applied` .* got '2'; `skipped` .* got '3'"),
    ],
)
def test_counts_that_cannot_be_are_refused_and_change_nothing(change, message):
    ledger = Ledger(attempted=1, applied=1)
    with pytest.raises(ValueError, match=message):
        ledger.load_state_dict(GOOD | change)
    assert ledger == Ledger(attempted=1, applied=1)


def test_a_missing_count_is_named():
    with pytest.raises(ValueError, match="`skipped` must be a whole number from 0 up, got None"):
        Ledger().load_state_dict({name: count for name, count in GOOD.items() if name != "skipped"})
