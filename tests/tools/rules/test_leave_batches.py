"""Unguarded counters of a loop that accumulates."""

import pytest


def test_a_counter_of_batches_is_refused_where_nothing_else_counts_and_left_where_it_does(loop):
    assert "counts-batches" in loop.stays("global_step += 1\nx = 1\nprint(x)")
    codes = loop.codes("if accelerator.sync_gradients:\n    global_step += 1\nstep_in_run += 1\nx = 1\nprint(x)")
    assert "data-counter" in codes
    assert "counts-batches" not in codes


def test_an_opaque_test_is_not_said_to_count_batches_for_sure(loop):
    (site,) = [s for s in loop.rewrite("if due(step):\n    global_step += 1").sites if s.code == "counts-batches"]
    assert "`due(step)`" in site.message
    assert "so it counts batches" not in site.message


def test_an_early_exit_above_is_a_test_that_may_guard(loop):
    (site,) = [
        s for s in loop.rewrite("if loss is None:\n    continue\nglobal_step += 1").sites if s.code == "counts-batches"
    ]
    assert "line 19 (`loss is None`)" in site.message


@pytest.mark.parametrize(
    ("test", "shown"),
    [
        ("is_due(step,   (1 +\n    2))", "is_due(step, (1 + 2))"),
        ("is_due(" + "n" * 52 + ")", "is_due(" + "n" * 52 + ")"),
        ("is_due(" + "n" * 40 + ", several, more)", "is_due(" + "n" * 40 + ", several, ..."),
        ("is_due(" + "n" * 42 + ", several, more)", "is_due(" + "n" * 42 + ", several, ..."),
        ("is_due(" + "n" * 43 + ", several, more)", "is_due(" + "n" * 43 + ", ..."),
    ],
)
def test_a_test_is_named_in_one_short_line(loop, test, shown):
    (site,) = [s for s in loop.rewrite(f"if {test}:\n    global_step += 1").sites if s.code == "counts-batches"]
    assert f"(`{shown}`)" in site.message


def test_an_average_at_every_micro_batch_is_no_counter_of_data(loop):
    result = loop.rewrite("if accelerator.sync_gradients:\n    global_step += 1\nema.step()\nx = 1\nprint(x)")
    (site,) = [site for site in result.sites if site.code == "counts-batches"]
    assert "averages at every micro-batch" in site.message
