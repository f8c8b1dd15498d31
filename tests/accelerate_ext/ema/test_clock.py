"""The time of the averages, as numbers and as tensors."""

from __future__ import annotations

import pytest
import torch

from accelerate_ext.ema.clock import Clock, Reading
from accelerate_ext.ema.profile import new_weight
from accelerate_ext.ema.weighting import DecayWeighting, PowerWeighting

GAMMA = 6.94
LATE = 70_000  # where averages move at every second step
GOOD = {"step": 5, "now": 50, "averaged": 40, "unit": "images"}


def clock_at(*reading) -> Clock:
    clock = Clock(PowerWeighting((GAMMA,)))
    if reading:
        clock.set(Reading(*reading))
    return clock


def on_device(clock, t, n=None):
    due, move = clock.advance_on_device(torch.tensor(t), n)
    return move.weights.item() if due else None


def on_host(clock, t, n=None):
    move = clock.advance(t, n)
    return None if move is None else move.weights[0]


ADVANCE = {"numbers": on_host, "tensors": on_device}


@pytest.mark.parametrize("advance", ADVANCE.values(), ids=ADVANCE)
@pytest.mark.parametrize("n", [None, 10])
def test_the_averages_take_in_the_steps_since_the_last_one(advance, n):
    clock, unit = clock_at(), n or 1
    assert clock.read() == Reading(0, 0, 0, None)
    assert advance(clock, 3, n) == 1
    assert advance(clock, 3, n) is None
    assert advance(clock, 8, n) == pytest.approx(new_weight(GAMMA, 3, 8), rel=1e-12)
    assert clock.read() == Reading(8, 8 * unit, 8 * unit, "images" if n else "updates")
    assert clock.state_dict() == {"step": 8, "now": 8 * unit, "averaged": 8 * unit, "unit": clock.read().unit}


@pytest.mark.parametrize("advance", ADVANCE.values(), ids=ADVANCE)
def test_the_number_of_images_may_change_between_updates(advance):
    clock = clock_at()
    assert advance(clock, 2, 10) == 1
    assert advance(clock, 5, 100) == pytest.approx(new_weight(GAMMA, 20, 320), rel=1e-12)
    assert clock.read() == Reading(5, 320, 320, "images")


@pytest.mark.parametrize("advance", ADVANCE.values(), ids=ADVANCE)
def test_averages_that_lie_behind_take_in_all_at_their_next_move(advance):
    clock = clock_at(LATE, LATE, LATE, "updates")
    assert advance(clock, LATE + 1) is None
    assert clock.read() == Reading(LATE + 1, LATE + 1, LATE, "updates")
    assert advance(clock, LATE + 2) == pytest.approx(new_weight(GAMMA, LATE, LATE + 2), rel=1e-12)
    assert clock.read() == Reading(LATE + 2, LATE + 2, LATE + 2, "updates")


@pytest.mark.parametrize("advance", ADVANCE.values(), ids=ADVANCE)
def test_flushing_brings_averages_up_to_now(advance):
    clock = clock_at(LATE, 10 * LATE, 10 * LATE, "images")
    assert clock.flush() is None
    assert advance(clock, LATE + 1, 10) is None
    move = clock.flush()
    assert move.weights[0] == new_weight(GAMMA, 10 * LATE, 10 * LATE + 10)
    assert clock.read() == Reading(LATE + 1, 10 * LATE + 10, 10 * LATE + 10, "images")
    assert clock.flush() is None


def test_numbers_and_tensors_may_take_turns():
    clock = clock_at()
    for t in range(1, 9):
        weight = (on_device if t % 3 else on_host)(clock, t)
        assert weight == pytest.approx(new_weight(GAMMA, t - 1, t), rel=1e-12)
    assert clock.read() == Reading(8, 8, 8, "updates")


def test_a_step_that_goes_back_is_refused_and_changes_nothing():
    clock = clock_at(5, 5, 5, "updates")
    message = (
        r"^`t` must not go back: the averages have seen applied step 5, got 4\. After going back to an older "
        r"checkpoint, load the averages' state of that checkpoint too; a counter must go on where it was, not start "
        r"again$"
    )
    with pytest.raises(ValueError, match=message):
        clock.advance(4, None)
    assert clock.read() == Reading(5, 5, 5, "updates")


def test_a_step_that_goes_back_on_the_device_is_told_when_the_clock_is_read():
    clock = clock_at(5, 5, 5, "updates")
    assert on_device(clock, 4) is None
    assert on_device(clock, 5) is None
    for read in (clock.read, clock.state_dict, clock.flush, lambda: clock.advance(9, None)):
        with pytest.raises(ValueError, match="seen applied step 5, and then an earlier one as a tensor"):
            read()
    clock.set(Reading(3, 3, 3, "updates"))
    assert clock.read() == Reading(3, 3, 3, "updates")


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.uint16, torch.uint64])
def test_a_tensor_of_one_whole_number_is_a_step(dtype, shape):
    clock = clock_at()
    due, move = clock.advance_on_device(torch.full(shape, 3, dtype=dtype), None)
    assert due.shape == () and move.weights.shape == (1,)
    assert clock.read() == Reading(3, 3, 3, "updates")


@pytest.mark.parametrize("weighting", [PowerWeighting((GAMMA,)), DecayWeighting()])
def test_everything_is_kept_where_the_steps_are_whatever_the_default_device(weighting):
    clock = Clock(weighting)
    for t in torch.tensor([3, 8]):
        with torch.device("meta"):
            due, move = clock.advance_on_device(t, None)
        assert {value.device.type for value in (due, move.weights, move.dither)} == {"cpu"}
    assert clock.read() == Reading(8, 8, 8, "updates")


@pytest.mark.parametrize(
    ("t", "given"),
    [
        (torch.tensor(3.0), r"torch\.float32 of shape \[\]"),
        (torch.tensor(3j), r"torch\.complex64 of shape \[\]"),
        (torch.tensor([3, 4]), r"torch\.int64 of shape \[2\]"),
    ],
)
def test_any_other_tensor_is_refused(t, given):
    with pytest.raises(TypeError, match=f"^`t` must be a whole number of one element, got {given}$"):
        clock_at().advance_on_device(t, None)


@pytest.mark.parametrize("advance", ADVANCE.values(), ids=ADVANCE)
@pytest.mark.parametrize(
    ("first", "then", "message"),
    [
        (None, 10, "^these averages count updates: `n` must be given at every update or at none, got `n` now$"),
        (10, None, "^these averages count images: `n` must be given at every update or at none, got no `n` now$"),
    ],
)
def test_images_are_counted_always_or_never(advance, first, then, message):
    clock = clock_at()
    advance(clock, 1, first)
    with pytest.raises(ValueError, match=message):
        advance(clock, 2, then)
    advance(clock, 2, first)
    assert clock.read().step == 2


def test_a_reading_comes_back_from_its_state():
    assert Reading.checked(GOOD) == Reading(5, 50, 40, "images")
    assert Reading.checked(clock_at().state_dict()) == Reading()
    for unit in (None, "updates"):
        assert Reading.checked({"step": 0, "now": 0, "averaged": 0, "unit": unit}).unit == unit


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ([], r"^the clock of a state must have step, now, averaged, unit, got \[\]$"),
        ({"step": 1}, r"^the clock of a state must have step, now, averaged, unit, got \{'step': 1\}$"),
        (GOOD | {"more": 1}, "^the clock of a state must have step, now, averaged, unit, got "),
        (GOOD | {"averaged": 51}, "^the clock of a state must not be ahead of itself, got "),
        (GOOD | {"unit": "epochs"}, "^the clock of a state must not be ahead of itself, got .*epochs"),
        (GOOD | {"step": -1}, "^`step` must be 0 or more, got -1$"),
        (GOOD | {"now": -1}, "^`now` must be 0 or more, got -1$"),
        (GOOD | {"averaged": -1}, "^`averaged` must be 0 or more, got -1$"),
    ],
)
def test_a_state_that_is_no_clock_is_refused(state, message):
    with pytest.raises(ValueError, match=message):
        Reading.checked(state)
