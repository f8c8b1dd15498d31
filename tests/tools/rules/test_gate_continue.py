"""Early exits between boundaries."""

import pytest


@pytest.mark.parametrize(
    "body",
    [
        "if not accelerator.sync_gradients or accelerator.optimizer_step_was_skipped:\n    continue\nglobal_step += 1",
        "if not accelerator.sync_gradients:\n    continue\nif optimizer.step_was_skipped:\n    continue\nglobal_step += 1",
    ],
)
def test_what_leaves_after_a_skip_already_stays(loop, body):
    assert "gated" not in loop.stays(body)


def test_an_exit_above_the_step_keeps_its_text(make_loop):
    loop = make_loop(step="if not accelerator.sync_gradients:\n    continue\noptimizer.step()\n")
    after = loop.rewrite("global_step += 1").after.decode()
    assert "        if not accelerator.sync_gradients:\n            continue\n        optimizer.step()" in after


def test_the_flag_joins_by_or(loop):
    assert loop.becomes(
        "if not accelerator.sync_gradients:\n    continue\nglobal_step += 1",
        "if not accelerator.sync_gradients or accelerator.optimizer_step_was_skipped:\n    continue\nglobal_step += 1",
    )


def test_an_alias_from_above_the_step_is_not_touched_and_its_test_is(make_loop):
    loop = make_loop(step="ready = accelerator.sync_gradients\noptimizer.step()\n")
    assert loop.becomes(
        "if not ready: continue\nglobal_step += 1",
        "if not ready or accelerator.optimizer_step_was_skipped: continue\nglobal_step += 1",
    )


def test_window_state_below_the_exit_is_cleared_on_a_skip(loop):
    assert loop.becomes(
        "if not accelerator.sync_gradients:\n    continue\n\nglobal_step += 1\nwindow = 0.0",
        "if not accelerator.sync_gradients:\n    continue\nif accelerator.optimizer_step_was_skipped:\n    window = 0.0\n"
        "    continue\n\nglobal_step += 1\nwindow = 0.0",
    )


def test_an_exit_that_does_something_is_not_taken_on_a_skip(loop):
    assert loop.becomes(
        "if not accelerator.sync_gradients:\n    num_micro += 1\n    continue\nglobal_step += 1",
        "if not accelerator.sync_gradients:\n    num_micro += 1\n    continue\nif accelerator.optimizer_step_was_skipped:\n"
        "    continue\nglobal_step += 1",
    )


def test_an_exit_that_depends_on_something_else_too_is_refused(loop):
    assert "unclear-test" in loop.stays(
        "if not accelerator.sync_gradients and step:\n    ema.step()\n    continue\nx = 1"
    )


def test_an_unprepared_optimizer_is_refused(make_loop):
    loop = make_loop(prepared="loader")
    assert "unprepared-optimizer" in loop.stays("if not accelerator.sync_gradients:\n    continue\nglobal_step += 1")


INSIDE = """\
with accelerator.accumulate(model):
    loss = model(batch)
    window += loss
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    if not accelerator.sync_gradients:
        continue
    global_step += 1
"""
GATED = INSIDE.replace(
    "        continue\n",
    "        continue\n    if accelerator.optimizer_step_was_skipped:\n        window = 0.0\n        continue\n",
)


def test_an_exit_inside_with_leaves_what_stands_behind_it_too(make_loop):
    rest = "ema.step()\nif accelerator.sync_gradients:\n    progress_bar.update(1)\nwindow = 0.0\n"
    assert make_loop(step="").becomes(INSIDE + rest, GATED + rest)


def test_an_exit_under_a_test_is_no_place_to_jump_over_resets(make_loop):
    exit_under_test = INSIDE.replace(
        "    if not accelerator.sync_gradients:\n        continue\n",
        "    if args.short:\n        if not accelerator.sync_gradients:\n            continue\n        ema.step()\n",
    )
    (site,) = [
        site for site in make_loop(step="").rewrite(exit_under_test + "window = 0.0\n").sites if site.code == "leaves"
    ]
    assert "jumps over line" in site.message


def test_a_step_behind_the_with_makes_the_exit_its_guard(make_loop):
    early = "with accelerator.accumulate(model):\n    accelerator.backward(model(batch))\n    optimizer.step()\n"
    body = (
        early + "    if not accelerator.sync_gradients:\n        continue\nother_optimizer.step()\nglobal_step += 1\n"
    )
    assert "step-guard" in make_loop(step="", prepared="optimizer, other_optimizer").codes(body)
