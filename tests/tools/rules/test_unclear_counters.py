"""Counters that no gate can be put round: reported, never passed over."""

import pytest

from tools.rewrite import rewrite
from tools.site import Outcome

HEAD = """\
from accelerate import Accelerator

accelerator = Accelerator()
model, optimizer = accelerator.prepare(build(), torch.optim.AdamW(parameters))
step = 0
"""
METHOD = """\
class Trainer:
    def __init__(self):
        self.accelerator = Accelerator()
        self.optimizer = self.accelerator.prepare(torch.optim.AdamW(parameters))
        self.register_buffer("step", torch.zeros(3))

    def tick(self):
        {count}

    def fit(self):
        for batch in self.loader:
            self.accelerator.backward(batch)
            self.optimizer.step()
            self.tick()
"""


def sites(text, code):
    return [site for site in rewrite(text.encode()).sites if site.code == code]


def test_a_walrus_in_the_test_of_a_loop_is_refused():
    loop = HEAD + "while (step := step + 1) < 9:\n    accelerator.backward(model(next(data)))\n    optimizer.step()\n"
    (site,) = sites(loop, "counted-in-test")
    assert (site.line, site.outcome) == (6, Outcome.REFUSED)
    assert "`step`" in site.message


@pytest.mark.parametrize(
    "line",
    [
        "if (global_step := global_step + 1) % 10 == 0:\n    print(1)",
        "if (global_step := global_step + 1) and accelerator.sync_gradients:\n    accelerator.log({}, step=global_step)",
        "log(global_step := 1 + global_step)",
    ],
)
def test_a_walrus_that_no_flag_stands_before_is_refused(loop, line):
    assert "counted-in-test" in loop.codes(line)


@pytest.mark.parametrize(
    "line",
    [
        "if accelerator.sync_gradients and (global_step := global_step + 1) % 10 == 0:\n    accelerator.save_state('x')",
        "if accelerator.sync_gradients:\n    print(global_step := global_step + 1)\n    ema.step(model)",
        "if (num_samples := num_samples + 1) > 3:\n    pass",
        "if (value := value + other) > 3:\n    pass",
    ],
)
def test_a_walrus_behind_a_flag_or_over_data_is_not_mentioned(loop, line):
    assert "counted-in-test" not in loop.codes(line)


def test_one_outside_a_loop_that_steps_is_not_mentioned(loop):
    text = loop.source("x = 1") + "\n\ndef other(n):\n    while (n := n + 1) < 3:\n        pass\n"
    assert not sites(text, "counted-in-test")


@pytest.mark.parametrize("count", ["self.step += torch.tensor(1)", "self.step += torch.ones(1)", "self.step.add_(1)"])
def test_a_tensor_of_ones_is_one_update_more(count):
    text = "import torch\nfrom accelerate import Accelerator\n\n\n" + METHOD.format(count=count)
    after = rewrite(text.encode()).after.decode()
    assert "            if not self.accelerator.optimizer_step_was_skipped:\n                self.tick()\n" in after


def test_ones_that_go_into_what_is_no_counter_are_none(loop):
    assert loop.stays("noise += torch.ones_like(noise)\nx = 1") == set()


@pytest.mark.parametrize(
    "count", ["self.step += torch.eye(3)[0]", "self.step += one_hot(self.phase, 3)", "self.step.add_(self.stride)"]
)
def test_another_amount_is_refused(count):
    (site,) = sites("from accelerate import Accelerator\n" + METHOD.format(count=count), "unclear-count")
    assert (site.line, site.outcome) == (9, Outcome.REFUSED)


def test_an_amount_that_is_fixed_by_the_number_of_processes_counts(loop):
    wanted = "if accelerator.sync_gradients and not accelerator.optimizer_step_was_skipped:\n    global_step += accelerator.num_processes"
    assert loop.becomes("if accelerator.sync_gradients:\n    global_step += accelerator.num_processes", wanted)
    assert "counts-batches" in loop.stays("global_step += accelerator.num_processes\nx = 1")


@pytest.mark.parametrize(
    "line",
    ["loss_per_step += loss", "step_time += elapsed", "total_steps += len(batch)", "global_step += batch.shape[0]"],
)
def test_sums_of_other_things_are_not_mentioned(loop, line):
    assert "unclear-count" not in loop.codes(line + "\nx = 1")


def test_in_a_gated_block_it_is_gated_with_the_block(loop):
    body = "if accelerator.sync_gradients:\n    global_step += stride"
    assert loop.codes(body) == {"gated"}
