"""Counters and averages behind a step without a guard."""

import pytest

from tools.rewrite import rewrite

NONE = {"accumulation": "", "step": "accelerator.backward(model(batch))\noptimizer.step()\noptimizer.zero_grad()\n"}
SKIPPED = "accelerator.optimizer_step_was_skipped"


@pytest.mark.parametrize(
    "body", ["num_batches += 1", "tokens_seen += 8", "x = 1", "print(step)", "window = 0.0", "schema.update(batch)"]
)
def test_what_counts_no_updates_stays(make_loop, body):
    assert "gated" not in make_loop(**NONE).stays(body)


def test_a_tail_of_bookkeeping_is_left_by_continue(make_loop):
    assert make_loop(**NONE).becomes(
        "# count\nema.step()\nglobal_step += 1\nif global_step % 2 == 0:\n    accelerator.log({}, step=global_step)",
        f"if {SKIPPED}:\n    continue\n# count\nema.step()\nglobal_step += 1\nif global_step % 2 == 0:\n"
        "    accelerator.log({}, step=global_step)",
    )


def test_among_other_statements_the_counting_ones_are_wrapped(make_loop):
    assert make_loop(**NONE).becomes(
        "global_step += 1\nema.step()\nbegin = time.time()\nprint(begin)",
        f"if not {SKIPPED}:\n    global_step += 1\n    ema.step()\nbegin = time.time()\nprint(begin)",
    )


def test_a_test_that_is_there_gets_a_clause(make_loop):
    assert make_loop(**NONE).becomes(
        "if args.ema:\n    ema.step()\nbegin = time.time()\nprint(begin)",
        f"if not {SKIPPED} and args.ema:\n    ema.step()\nbegin = time.time()\nprint(begin)",
    )


def test_with_accumulate_the_boundary_is_asked_too(make_loop):
    loop = make_loop(accumulation="")
    assert loop.becomes(
        "global_step += 1\nbegin = 1\nprint(begin)",
        f"if accelerator.sync_gradients and not {SKIPPED}:\n    global_step += 1\nbegin = 1\nprint(begin)",
    )


def test_a_counter_of_batches_is_refused_where_nothing_else_counts_and_left_where_it_does(loop):
    assert "counts-batches" in loop.stays("global_step += 1\nx = 1\nprint(x)")
    codes = loop.codes("if accelerator.sync_gradients:\n    global_step += 1\nstep_in_run += 1\nx = 1\nprint(x)")
    assert "data-counter" in codes
    assert "counts-batches" not in codes


def test_a_modulo_next_to_accumulate_keeps_its_meaning(loop):
    assert loop.becomes(
        "if (step + 1) % accum == 0:\n    global_step += 1\nx = 1\nprint(x)",
        f"if not (accelerator.sync_gradients and {SKIPPED}) and (step + 1) % accum == 0:\n"
        "    global_step += 1\nx = 1\nprint(x)",
    )


def test_a_step_that_picks_its_batches_leaves_a_counter_of_all_batches_alone(make_loop):
    loop = make_loop(accumulation="", step="accelerator.backward(loss)\nif step % 4 == 0:\n    optimizer.step()\n")
    assert "conditional-step" in loop.stays("global_step += 1\nx = 1\nprint(x)")


def test_a_counter_that_a_range_is_tied_to_is_refused(make_loop):
    step = "for global_index in range(global_step, 9):\n    accelerator.backward(1)\n    optimizer.step()\n    global_step += 1\n"
    assert "range-bound" in make_loop(accumulation="", step=step).stays("")


def test_two_statements_on_a_line_with_other_code_are_refused(make_loop):
    assert "layout" in make_loop(**NONE).stays("global_step += 1; x = 1\nprint(x)")


def test_loops_without_an_accelerator_are_none_of_our_business(make_loop):
    text = (
        make_loop(**NONE)
        .source("global_step += 1")
        .replace("accelerator", "trainer")
        .replace("Accelerator", "Trainer")
    )
    from tools.rewrite import rewrite

    assert rewrite(text.encode()).sites == ()


@pytest.mark.parametrize(
    ("test", "word"),
    [
        (
            "match accelerator.sync_gradients:\n    case True:\n        global_step += 1",
            "`accelerator.sync_gradients`",
        ),
        (
            "match mode:\n    case 1 if accelerator.sync_gradients:\n        global_step += 1",
            "`accelerator.sync_gradients`",
        ),
        ("if sum([accelerator.sync_gradients, True]) == 2:\n    global_step += 1", "`sum("),
        ("while accelerator.sync_gradients:\n    global_step += 1\n    break", "`accelerator.sync_gradients`"),
    ],
)
def test_a_test_that_asks_for_the_boundary_in_another_form_is_named(loop, test, word):
    (site,) = [site for site in loop.rewrite(test).sites if site.code == "unread-test"]
    assert word in site.message
    assert f"line {20 if 'case 1' in test else 19}" in site.message


def test_a_function_that_looks_at_the_boundary_is_named(loop):
    function = "\n\ndef is_due(accelerator):\n    print(1)\n    return accelerator.sync_gradients\n"
    text = loop.source("if is_due(accelerator):\n    global_step += 1") + function
    (site,) = [site for site in rewrite(text.encode()).sites if site.code == "unread-test"]
    assert "`is_due` (line 23)" in site.message


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
