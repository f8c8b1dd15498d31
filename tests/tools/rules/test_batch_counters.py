"""Counters of batches and of rounds."""

import pytest

from tools.site import Outcome

COUNT = "if accelerator.sync_gradients:\n    global_step += 1\n"
INNER = "for _ in range(4):\n    with accelerator.accumulate(model):\n        accelerator.backward(loss)\n        optimizer.step()\n"


def sites(loop, body, code):
    return [site for site in loop.rewrite(body).sites if site.code == code]


def test_a_counter_computed_from_the_place_in_the_data_is_refused(loop):
    assert loop.stays("global_step = epoch * len(loader) + step") == {"counts-batches"}


def test_beside_a_counter_of_updates_it_is_a_warning(loop):
    found = sites(loop, COUNT + "current_step = epoch * len(loader) + step", "data-counter")
    assert [site.outcome for site in found] == [Outcome.LEFT]


@pytest.mark.parametrize(
    "line", ["num_samples = step * 8", "global_step = offset + 1", "part = step % 4", "x = step + 1"]
)
def test_other_arithmetic_on_the_place_is_not_mentioned(loop, line):
    assert not loop.codes(COUNT + line) & {"counts-batches", "data-counter"}


def test_bookkeeping_behind_an_inner_loop_over_micro_batches_is_refused(make_loop):
    loop = make_loop(step=INNER)
    assert loop.stays("global_step += 1") == {"step-in-inner-loop"}


def test_an_inner_loop_that_counts_itself_is_an_epoch_and_not_mentioned(make_loop):
    inner = (
        "for part in range(4):\n    optimizer.step()\n    if accelerator.sync_gradients:\n        global_step += 1\n"
    )
    assert "step-in-inner-loop" not in make_loop(step=inner).codes("ema.step(model)")


def test_an_inner_loop_over_data_is_an_epoch_and_not_mentioned(make_loop):
    loop = make_loop(step="for part in batch:\n    optimizer.step()\n")
    assert "step-in-inner-loop" not in loop.codes("ema.step(model)")
