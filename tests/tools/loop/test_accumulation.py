"""Whether a script accumulates gradients."""

import pytest

from tools.options import Options
from tools.source import Source
from tools.work import Work


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        ("gradient_accumulation_steps=args.steps", "maybe"),
        ("gradient_accumulation_steps=2", "maybe"),
        ("gradient_accumulation_steps=1", "one"),
        ("gradient_accumulation_steps=None", "one"),
        ("gradient_accumulation_plugin=plugin", "maybe"),
        ("deepspeed_plugin=plugin", "maybe"),
        ("megatron_lm_plugin=plugin", "maybe"),
        ("deepspeed_plugin=None", "one"),
        ("mixed_precision='fp16'", "one"),
        ("mixed_precision='fp16', gradient_accumulation_steps=4", "maybe"),
        ("*options", "maybe"),
        ("**options", "maybe"),
        ("'no', *options", "maybe"),
    ],
)
def test_the_constructor_says_whether_to_accumulate(arguments, answer):
    text = f"accelerator = Accelerator({arguments})\nwith accelerator.accumulate(model):\n    pass\n"
    assert Work(Source(text), Options()).objects.accumulation == answer


@pytest.mark.parametrize("use", ["if accelerator.sync_gradients: pass", "with accelerator.accumulate(model): pass"])
def test_a_script_that_uses_neither_the_flag_nor_accumulate_does_not(use):
    text = "accelerator = Accelerator(gradient_accumulation_steps=4)\n"
    assert Work(Source(text + use), Options()).objects.accumulation == "maybe"
    assert Work(Source(text), Options()).objects.accumulation == "none"


def test_one_accelerator_of_two_that_accumulates_is_enough():
    text = "a = Accelerator()\nb = Accelerator(gradient_accumulation_steps=2)\nwith b.accumulate(m): pass\n"
    assert Work(Source(text), Options()).objects.accumulation == "maybe"


def test_another_class_of_that_name_inside_a_longer_one_says_nothing():
    text = "a = Accelerator()\nb = FakeAccelerator(gradient_accumulation_steps=2)\nwith a.accumulate(m): pass\n"
    assert Work(Source(text), Options()).objects.accumulation == "one"
