"""A ledger that verdicts reach late, in order."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from accelerate_ext.ledger import Ledger
from accelerate_ext.tally import Tally
from accelerate_ext.update import Verdict
from benchmarks.device_reads import DeviceReads


def verdict(skipped: bool, is_known: bool) -> Verdict:
    return Verdict(skipped) if is_known else Verdict(found_inf=torch.full((1,), float(skipped)))


def counted(history) -> Ledger:
    ledger = Ledger()
    for skipped, _ in history:
        ledger.record(skipped)
    return ledger


HISTORIES = st.lists(st.tuples(st.booleans(), st.booleans()), max_size=40)


@settings(max_examples=60)
@given(history=HISTORIES, asked=st.sets(st.integers(0, 39)))
def test_any_mixture_of_known_and_unknown_verdicts_is_counted_in_order(history, asked):
    tally = Tally()
    for number, (skipped, is_known) in enumerate(history):
        one = verdict(skipped, is_known)
        tally.record(one)
        if number in asked:
            assert one.skipped == skipped
        assert tally.attempted == number + 1
        applied = sum(not was_skipped for was_skipped, _ in history[: number + 1])
        assert tally.applied_on_device(torch.device("cpu")).item() == applied
    assert tally.read() == counted(history)


@settings(max_examples=30)
@given(history=HISTORIES)
def test_what_is_known_so_far_is_at_most_two_chunks_behind(history):
    tally = Tally()
    for number, (skipped, is_known) in enumerate(history):
        tally.record(verdict(skipped, is_known))
        so_far = tally.seen_so_far
        assert so_far == counted(history[: so_far.attempted])
        assert so_far.attempted >= number + 1 - 16


def test_verdicts_on_the_device_are_known_16_updates_later_at_the_latest():
    tally, behind = Tally(), []
    for _ in range(40):
        tally.record(verdict(False, is_known=False))
        behind.append(tally.attempted - tally.seen_so_far.attempted)
    assert max(behind) == 15


def test_what_was_asked_for_one_by_one_is_counted_at_once():
    tally, verdicts = Tally(), [verdict(number % 2 == 0, is_known=False) for number in range(12)]
    for one in verdicts:
        tally.record(one)
    assert [one.skipped for one in verdicts] == [True, False] * 6
    assert tally.seen_so_far == Ledger(attempted=12, applied=6, skipped=6, skipped_in_a_row=0)


def test_the_count_is_on_the_device_that_is_asked_for():
    tally = Tally()
    tally.record(verdict(False, is_known=True))
    for number in range(2):
        count = tally.applied_on_device(torch.device("meta"))
        assert (count.device.type, count.dtype, count.shape) == ("meta", torch.int64, ()), number
        tally.record(verdict(False, is_known=False))


def test_counting_on_the_device_reads_nothing_and_reading_reads_once():
    tally = Tally()
    with DeviceReads() as reads:
        for _ in range(29):
            tally.record(verdict(False, is_known=False))
            tally.applied_on_device(torch.device("cpu"))
    assert reads.count == 0
    assert tally.read().applied == 29


@pytest.mark.parametrize("how", [copy.deepcopy, lambda tally: pickle.loads(pickle.dumps(tally))])
def test_a_copy_knows_all(how):
    tally = Tally()
    for number in range(11):
        tally.record(verdict(number % 3 == 0, is_known=False))
    copied = how(tally)
    assert copied.read() == tally.read() == Ledger(attempted=11, applied=7, skipped=4, skipped_in_a_row=0)
