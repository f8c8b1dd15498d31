"""What runs for skipped updates only is theirs: nothing there is gated, since it would never run again."""

from __future__ import annotations

import pytest

from tools.site import Outcome

GATE = "accelerator.sync_gradients and not accelerator.optimizer_step_was_skipped"
COUNT = "global_step += 1\n"
ASKED = {
    "an arm of the test": f"if {GATE}:\n    {COUNT}elif accelerator.sync_gradients:\n",
    "the other arm": f"if {GATE}:\n    {COUNT}else:\n",
    "the other arm, nested": f"if accelerator.sync_gradients:\n    if {GATE}:\n        {COUNT}    else:\n    ",
    "a test of its own": f"if {GATE}:\n    {COUNT}if accelerator.sync_gradients and accelerator.optimizer_step_was_skipped:\n",
    "a test without the boundary": f"if {GATE}:\n    {COUNT}if accelerator.optimizer_step_was_skipped:\n",
    "an early leave": f"if {GATE}:\n    {COUNT}    continue\nif accelerator.sync_gradients:\n",
    "no boundary or a skip": f"if {GATE}:\n    {COUNT}if not accelerator.sync_gradients or "
    "accelerator.optimizer_step_was_skipped:\n",
    "all but a skip": "if not (accelerator.sync_gradients and accelerator.optimizer_step_was_skipped):\n    print(1)\nelse:\n",
}
DONE = [
    "overflows += 1",
    "overflows += in_a_row",
    "progress_bar.update(0)",
    "accelerator.log({'overflows': overflows}, step=global_step)",
    "if global_step % 9 == 0:\n    save()",
    "scheduler.step()",
    "notify(accelerator.sync_gradients)",
]


@pytest.mark.parametrize("accumulation", ["gradient_accumulation_steps=args.steps", ""])
@pytest.mark.parametrize("done", DONE)
@pytest.mark.parametrize("name", ASKED)
def test_what_a_skipped_update_does_stays(make_loop, name, done, accumulation):
    head = ASKED[name]
    indent = "        " if name.endswith("nested") else "    "
    body = head.rstrip(" ") + "".join(f"{indent}{line}\n" for line in done.splitlines())
    result = make_loop(accumulation=accumulation).rewrite(body)
    assert result.after == result.before
    assert [site.code for site in result.sites if site.outcome in (Outcome.REWRITTEN, Outcome.REFUSED)] == []


def test_a_test_that_asks_for_more_leaves_applied_updates_to_its_other_arm(loop):
    body = f"if args.ema and {GATE}:\n    {COUNT}else:\n    if accelerator.sync_gradients:\n        other_step += 1"
    after = loop.rewrite(body).after.decode()
    assert f"    if {GATE}:\n                other_step += 1" in after


def test_a_retry_of_a_skipped_update_is_an_attempt_of_its_own(make_loop):
    body = (
        "if accelerator.optimizer_step_was_skipped:\n    accelerator.backward(model(batch))\n    optimizer.step()\n"
        "    if accelerator.sync_gradients:\n        global_step += 1"
    )
    result = make_loop().rewrite(body)
    assert result.after != result.before or any(site.outcome is Outcome.REFUSED for site in result.sites)
