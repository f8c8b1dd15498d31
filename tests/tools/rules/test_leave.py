"""What stays as it is, each with its reason."""

import pytest

GATE = "accelerator.sync_gradients and not accelerator.optimizer_step_was_skipped"


@pytest.mark.parametrize(
    ("step", "body", "code"),
    [
        ("if accelerator.sync_gradients:\n    accelerator.clip_grad_norm_(1)\noptimizer.step()\n", "", "clip-guard"),
        ("if accelerator.sync_gradients:\n    optimizer.step()\n", "", "step-guard"),
        ("if accelerator.sync_gradients:\n    x = 1\noptimizer.step()\n", "", "before-attempt"),
        ("optimizer.step()\n", "if accelerator.sync_gradients:\n    log_grad_norm(model)", "gradient-norm"),
        ("optimizer.step()\n", "if accelerator.sync_gradients:\n    x = 1", "boundary"),
        ("optimizer.step()\n", f"if {GATE}:\n    global_step += 1", "applied"),
        ("if accelerator.sync_gradients:\n    global_step += 1\noptimizer.step()\n", "", "before-step"),
        (
            "optimizer.step()\n",
            "if not accelerator.optimizer_step_was_skipped:\n    global_step += 1",
            "flag-without-sync",
        ),
    ],
)
def test_every_place_that_stays_is_reported(make_loop, step, body, code):
    step = "accelerator.accumulate(model)\n" + step
    assert code in make_loop(step=step).stays(body)
