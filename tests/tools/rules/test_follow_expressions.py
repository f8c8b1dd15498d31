"""Guards in the shape of an expression."""

import pytest

FLAG = "accelerator.sync_gradients and not accelerator.optimizer_step_was_skipped"


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("global_step += int(accelerator.sync_gradients)", f"global_step += int({FLAG})"),
        ("global_step += accelerator.sync_gradients", f"global_step += {FLAG}"),
        ("global_step += 1 if accelerator.sync_gradients else 0", f"global_step += 1 if {FLAG} else 0"),
        ("progress_bar.update(1 if accelerator.sync_gradients else 0)", f"progress_bar.update(1 if {FLAG} else 0)"),
        ("progress_bar.update(accelerator.sync_gradients)", f"progress_bar.update({FLAG})"),
        ("accelerator.sync_gradients and ema.step()", f"{FLAG} and ema.step()"),
    ],
)
def test_what_grows_by_the_boundary_grows_by_applied_updates(loop, line, wanted):
    assert loop.becomes(f"{line}\nx = 1\nprint(x)", f"{wanted}\nx = 1\nprint(x)")


@pytest.mark.parametrize(
    "line",
    [
        "global_step += int(accelerator.sync_gradients and not accelerator.optimizer_step_was_skipped)",
        "boundary = accelerator.sync_gradients",
        "print(accelerator.sync_gradients)",
        "accelerator.log({'sync': accelerator.sync_gradients})",
    ],
)
def test_what_is_right_or_only_looks_stays(loop, line):
    assert "expression-gated" not in loop.stays(f"{line}\nx = 1\nprint(x)")


def test_a_use_that_is_not_understood_is_refused(loop):
    assert "unclear-use" in loop.stays("rate = 3 * accelerator.sync_gradients\nx = 1\nprint(x)")


def test_another_name_of_the_flag_that_chooses_is_not_passed_over(loop):
    body = "synced = accelerator.sync_gradients\nmoved = ema.step(model) if synced else None"
    assert "unclear-use" in loop.stays(body)
