"""What each place of a loop is, and what becomes of it."""

import textwrap

import pytest

from tools.rewrite import Options, rewrite

HEAD = """\
from accelerate import Accelerator


def main(model, optimizer, critic_optimizer, loader):
    accelerator = Accelerator(gradient_accumulation_steps=2)
    model, optimizer, critic_optimizer, loader = accelerator.prepare(model, optimizer, critic_optimizer, loader)
    global_step = other = 0
    WARMUP
    for batch in loader:
"""
STEP = "with accelerator.accumulate(model):\n    accelerator.backward(model(batch))\n    optimizer.step()\n"
COUNT = "global_step += 1\n"
APPLIED, STALE, TAIL, CLIP = "applied-update test", "stale flag", "unguarded counter", "clip guard"
BLOCK, BOUNDARY, BEFORE, UNCLEAR = "bookkeeping block", "boundary block", "guard before the step", "unclear test"


def places(body, warmup="pass", **options):
    """The kinds and codes of a loop, in order."""
    text = HEAD.replace("WARMUP", warmup) + textwrap.indent(body, " " * 8)
    result = rewrite(text.encode(), Options(**options))
    return [(site.kind, site.code) for site in result.sites]


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (f"{STEP}if accelerator.sync_gradients:\n    {COUNT}", [(BLOCK, "gated")]),
        (
            f"{STEP}if not accelerator.sync_gradients:\n    continue\n"
            f"if accelerator.optimizer_step_was_skipped:\n    continue\n{COUNT}",
            [(BOUNDARY, "boundary"), (APPLIED, "applied")],
        ),
        (
            f"{STEP}if not accelerator.sync_gradients:\n    continue\nif batch.x:\n    continue\n{COUNT}",
            [("early continue", "gated")],
        ),
        (
            f"{STEP}if not accelerator.sync_gradients:\n    print(1)\n"
            f"elif accelerator.optimizer_step_was_skipped:\n    print(2)\nelse:\n    {COUNT}",
            [(BOUNDARY, "boundary"), (APPLIED, "applied")],
        ),
        (
            f"{STEP}if accelerator.optimizer_step_was_skipped:\n    skips += 1\n"
            "    if accelerator.sync_gradients:\n        more += 1\n",
            [(APPLIED, "applied"), (BOUNDARY, "boundary")],
        ),
        (
            f"{STEP}if accelerator.sync_gradients:\n    {COUNT}    if accelerator.sync_gradients:\n        other += 1\n",
            [(BLOCK, "gated")],
        ),
        (
            f"{STEP}if accelerator.sync_gradients or batch.is_last:\n"
            f"    if accelerator.sync_gradients:\n        {COUNT}",
            [(UNCLEAR, "unclear-test")],
        ),
        (
            "if accelerator.sync_gradients or batch.is_last:\n"
            f"    if accelerator.sync_gradients:\n        print(1)\n{STEP}",
            [(BEFORE, "before-attempt"), (BEFORE, "before-attempt")],
        ),
        (
            f"if not accelerator.sync_gradients:\n    continue\n{STEP}",
            [(BEFORE, "before-attempt")],
        ),
        (
            f"skipped = accelerator.optimizer_step_was_skipped\n{STEP}"
            f"if accelerator.sync_gradients and not skipped:\n    {COUNT}",
            [(STALE, "stale-flag")],
        ),
        (
            f"{STEP}skipped = accelerator.optimizer_step_was_skipped\n"
            f"if accelerator.sync_gradients and not skipped:\n    {COUNT}",
            [(APPLIED, "applied")],
        ),
        (
            f"{STEP}if not accelerator.sync_gradients:\n    {COUNT}"
            "if accelerator.sync_gradients:\n    global_step = global_step + 1\n",
            [(BOUNDARY, "boundary"), (BLOCK, "gated")],
        ),
        (
            f"if accelerator.sync_gradients:\n    accelerator.clip_grad_norm_(x)\n{STEP}",
            [(CLIP, "clip-guard")],
        ),
    ],
)
def test_every_place_is_told_with_its_kind(body, found):
    assert places(body) == found


def test_a_boundary_that_a_second_optimizer_steps_behind_is_a_step_guard():
    body = f"{STEP}if not accelerator.sync_gradients:\n    continue\ncritic_optimizer.step()\n{COUNT}"
    assert places(body)[0] == ("step guard", "step-guard")
    assert places(body, counted_optimizer="optimizer") == [
        ("step guard", "step-guard"),
        (TAIL, "gated"),
    ]


SKIPPED = "if not optimizer.step_was_skipped:\n"
PLAIN = "accelerator.backward(model(batch))\noptimizer.step()\n"
EACH = [
    (
        f"if batch.x:\n    pass\nelif batch.y:\n    {COUNT}",
        f"if batch.x:\n    pass\nelif batch.y:\n    {SKIPPED}        {COUNT}",
    ),
    (
        f"with timer:\n    if batch.x:\n        {COUNT}    print(1)\n",
        f"{SKIPPED}    with timer:\n        if batch.x:\n            {COUNT}        print(1)\n",
    ),
    (
        f"{COUNT}if accelerator.optimizer_step_was_skipped:\n    continue\nother += 1\n",
        f"{SKIPPED}    {COUNT}if accelerator.optimizer_step_was_skipped:\n    continue\nother += 1\n",
    ),
    ("if accelerator.optimizer_step_was_skipped:\n    continue\nif accelerator.sync_gradients:\n    " + COUNT, None),
    (
        f"if batch.x:\n    {COUNT}else:\n    print(1)\n",
        f"if batch.x:\n    {SKIPPED}        {COUNT}else:\n    print(1)\n",
    ),
]


@pytest.mark.parametrize(("body", "after"), EACH)
def test_where_every_batch_is_an_update_only_what_counts_is_gated(body, after):
    head = HEAD.replace("WARMUP", "pass").replace("gradient_accumulation_steps=2", "")
    before, wanted = (head + textwrap.indent(PLAIN + item, " " * 8) for item in (body, after or body))
    assert rewrite(before.encode()).after.decode() == wanted


def test_a_guard_in_a_loop_without_a_step_is_no_guard_before_one():
    warmup = "for x in loader:\n        if accelerator.sync_gradients:\n            print(x)"
    assert places(STEP, warmup)[0] == ("guard without a step", "no-step")
