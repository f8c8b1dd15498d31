"""What stays as it is, each with its reason."""

import pytest

from tools.rewrite import rewrite
from tools.site import Outcome

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
        (f"if {GATE}:\n    x = 1\noptimizer.step()\n", "", "stale-flag"),
        (
            "optimizer.step()\n",
            "if not accelerator.optimizer_step_was_skipped:\n    global_step += 1",
            "flag-without-sync",
        ),
        ("accelerator.accumulate(model)\n", "if accelerator.sync_gradients:\n    global_step += 1", "no-step"),
    ],
)
def test_every_place_that_stays_is_reported(make_loop, step, body, code):
    step = "accelerator.accumulate(model)\n" + step
    assert code in make_loop(step=step).stays(body)


def test_a_flag_that_is_asked_once_an_epoch_is_a_warning(make_loop):
    loop = make_loop(step="for part in batch:\n    optimizer.step()\n")
    sites = loop.rewrite("if not accelerator.optimizer_step_was_skipped:\n    scheduler.step()").sites
    assert [(site.code, site.outcome) for site in sites] == [("epoch-flag", Outcome.LEFT)]


def test_a_step_in_a_hook_names_the_line_that_hands_it_on(loop):
    text = """\
def main(model, loader):
    accelerator = Accelerator()
    optimizer = accelerator.prepare(AdamW())

    def update(parameter):
        optimizer.step()

    model.register_post_accumulate_grad_hook(update)
    for batch in loader:
        accelerator.backward(batch)
        if accelerator.sync_gradients:
            global_step += 1
"""
    result = rewrite(text.encode())
    assert result.after == text.encode()
    (site,) = [site for site in result.sites if site.code == "step-in-hook"]
    assert "line 8" in site.message
    assert "`optimizer`" in site.message
