"""What decides about a step that is not made in every iteration, and names that a gate would leave without a value."""

import textwrap

import pytest

from tools.rewrite import rewrite

HEAD = """\
import torch
from accelerate import Accelerator


def main(loader, args, flag):
    accelerator = Accelerator(gradient_accumulation_steps=args.steps)
    model, global_step, fused = build(), 0, args.fused
    optimizer = torch.optim.AdamW(model.parameters())
    model, optimizer = accelerator.prepare(model, optimizer)
    for step, batch in enumerate(loader):
        loss = model(batch)
        accelerator.backward(loss)
        if TEST:
            optimizer.step()
        if accelerator.sync_gradients:
            global_step += 1
"""
GATE = "if accelerator.sync_gradients and not accelerator.optimizer_step_was_skipped"


def guard(test):
    """The bookkeeping test after the rewrite, and the codes of the report."""
    result = rewrite(HEAD.replace("TEST", test).encode())
    line = result.after.decode().splitlines()[-2].strip()
    return line, {site.code for site in result.sites}


@pytest.mark.parametrize(
    "test", ["not args.fused", "not fused", "args.mode == 'a' or flag", "isinstance(optimizer, Lazy)"]
)
def test_a_mode_of_the_run_is_no_part_of_the_gate(test):
    line, codes = guard(test)
    assert line == f"{GATE}:"
    assert "conditional-step" not in codes


@pytest.mark.parametrize(
    "test", ["step % 2 == 0", "(global_step + 1) % args.steps == 0", "step > 10", "global_step < 5"]
)
def test_a_step_that_goes_by_a_counter_refuses_a_block_that_runs_more_often(test):
    line, codes = guard(test)
    assert line == "if accelerator.sync_gradients:"
    assert "conditional-step" in codes


@pytest.mark.parametrize("test", ["torch.isfinite(loss)", "not loss.isnan()", "loss < 9"])
def test_what_the_data_showed_is_asked_again(test):
    line, _ = guard(test)
    assert line == f"{GATE} and {test}:"


BLOCK = """\
if accelerator.sync_gradients:
    global_step += 1
    logs = {"loss": loss}
"""


def behind(text):
    body = HEAD.replace("if TEST:\n            ", "").rpartition("        if acc")[0]
    source = body + textwrap.indent(BLOCK + text, " " * 8)
    result = rewrite(source.encode())
    return result.after != result.before, {site.code for site in result.sites}


def test_a_name_that_only_the_block_binds_and_every_iteration_reads_refuses_the_block():
    assert behind("print(logs)\n") == (False, {"late-name"})


@pytest.mark.parametrize(
    "text",
    [
        "if accelerator.sync_gradients:\n    print(logs)\n",
        "if global_step % 2 == 0:\n    print(logs)\n",
        "logs = {}\n",
        "print(global_step)\n",
    ],
)
def test_a_name_that_is_bound_elsewhere_or_read_at_the_same_boundaries_does_not(text):
    changed, codes = behind(text)
    assert changed
    assert "late-name" not in codes
