"""Tests on a flag that nothing can be done about."""

import pytest

from tools.rewrite import rewrite
from tools.site import Outcome

GATE = "accelerator.sync_gradients and not accelerator.optimizer_step_was_skipped"


@pytest.mark.parametrize(
    ("step", "body", "code"),
    [
        (f"if {GATE}:\n    x = 1\noptimizer.step()\n", "", "stale-flag"),
        ("accelerator.accumulate(model)\n", "if accelerator.sync_gradients:\n    global_step += 1", "no-step"),
        ("optimizer.step()\n", "if accelerator.sync_gradients or last:\n    global_step += 1", "unclear-test"),
    ],
)
def test_each_is_refused_with_its_reason(make_loop, step, body, code):
    assert code in make_loop(step="accelerator.accumulate(model)\n" + step).stays(body)


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
