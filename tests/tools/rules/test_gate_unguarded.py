"""Counters and averages behind a step without a guard."""

import textwrap

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


@pytest.mark.parametrize("end", ["", "x = 1\nprint(x)"], ids=["to the end of the body", "among other statements"])
@pytest.mark.parametrize(
    "inner",
    [
        "if accelerator.sync_gradients:\n    ema.step()",
        "if accelerator.sync_gradients:\n    ema.step()\nelse:\n    progress_bar.update(1)",
        "if not accelerator.sync_gradients:\n    pass\nelse:\n    ema.step()",
        "if accelerator.sync_gradients:\n    if args.ema:\n        ema.step()\n    progress_bar.update(1)",
    ],
    ids=["one arm", "two arms", "the other arm", "nested"],
)
def test_a_guard_inside_a_gated_tail_is_gated_with_it(make_loop, inner, end):
    applied = f"accelerator.sync_gradients and not {SKIPPED}"
    gate = f"if {applied}:\n" if end else f"if not accelerator.sync_gradients or {SKIPPED}:\n    continue\n"
    block = "global_step += 1\n" + inner
    kept = textwrap.indent(block, "    ") if end else block
    assert make_loop(**NONE).becomes(f"{block}\n{end}", f"{gate}{kept}\n{end}")


def test_what_stands_inside_a_gated_tail_is_reported_as_gated(make_loop):
    body = "global_step += 1\nif accelerator.sync_gradients:\n    ema.step()"
    result = make_loop(**NONE).rewrite(body)
    lines = result.before.decode().splitlines()
    sites = {lines[site.line - 1].strip(): site.code for site in result.sites}
    assert sites["global_step += 1"] == "gated"
    assert sites["if accelerator.sync_gradients:"] == "inside-gate"


BY_MODULO = """\
loss = model(batch)
window += loss
accelerator.backward(loss)
if (step + 1) % 4 == 0:
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize("end", ["", "x = 1\nprint(x)\n", "if global_step >= 9:\n    break\n"])
def test_sums_go_back_only_in_iterations_that_attempt_an_update(make_loop, end):
    """Behind a skipped update the flag keeps its answer while the next window gathers."""
    loop = make_loop(accumulation="", step=BY_MODULO)
    log = "    if global_step % 2 == 0:\n        accelerator.log({'loss': window}, step=global_step)\n        window = 0.0\n"
    after = loop.rewrite("if (step + 1) % 4 == 0:\n    global_step += 1\n" + log + end).after.decode()
    assert textwrap.dedent(after[after.index("zero_grad()\n") + 12 :]).startswith(
        f"if not {SKIPPED} and (step + 1) % 4 == 0:\n    global_step += 1\n{log}    applied_window = window + 0\n"
        "elif (step + 1) % 4 == 0:\n    window = applied_window + 0\n"
    )


def test_a_log_at_every_micro_batch_behind_the_test_of_the_step_goes_on(make_loop):
    loop = make_loop(accumulation="", step=BY_MODULO)
    log = "accelerator.log({'loss': 1.0}, step=global_step)\n"
    count = "if (step + 1) % 4 == 0:\n    global_step += 1\n"
    assert loop.becomes(count + log, f"if not {SKIPPED} and {count.removeprefix('if ')}{log}")
