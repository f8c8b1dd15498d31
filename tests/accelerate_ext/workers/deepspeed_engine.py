"""The real DeepSpeed engine on the CPU, fp16. Writes what it saw to `OUT/result.json`.

Usage: deepspeed_engine.py STAGE OUT
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import accelerate
import torch
from accelerate.state import AcceleratorState, GradientState
from accelerate.utils import DeepSpeedPlugin
from torch import nn

import accelerate_ext

STAGE, OUT = int(sys.argv[1]), Path(sys.argv[2])
INF = float("inf")


def config_of(accumulation):
    return {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": accumulation,
        "fp16": {"enabled": True, "initial_scale_power": 4, "hysteresis": 1, "loss_scale_window": 1000},
        "zero_optimization": {"stage": STAGE},
        "zero_allow_untested_optimizer": True,
    }


def make(cls=accelerate_ext.Accelerator, accumulation=1, **options):
    AcceleratorState._reset_state()
    GradientState._reset_state()
    plugin = DeepSpeedPlugin(hf_ds_config=config_of(accumulation))
    accelerator = cls(deepspeed_plugin=plugin, gradient_accumulation_steps=accumulation, **options)
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    model, optimizer = accelerator.prepare(model, optimizer)
    return accelerator, model, optimizer


def train(accelerator, model, optimizer, batches=6, bad=(), window="accumulate"):
    generator = torch.Generator().manual_seed(1)
    seen = []
    for number in range(batches):
        batch = torch.randn(2, 4, generator=generator).to(accelerator.device, torch.float16)
        with getattr(accelerator, window)(model) as update:
            loss = model(batch).float().pow(2).mean()
            accelerator.backward(loss * INF if number in bad else loss)
            optimizer.step()
            optimizer.zero_grad()
        state = [update.outcome] if update is not None else []
        if isinstance(accelerator, accelerate_ext.Accelerator):
            state += [accelerator.update_applied, optimizer.step_was_skipped]
        seen.append(state)
    return seen


def summary(accelerator, model, optimizer):
    engine = accelerator.deepspeed_engine_wrapped.engine
    return {
        "engine": [engine.global_steps, engine.skipped_steps],
        "counts": [accelerator.attempted_step, accelerator.applied_step, accelerator.skipped_steps],
        "optimizer": [optimizer.attempted_step, optimizer.applied_step, optimizer.skipped_steps],
        "tensor": accelerator.applied_step_tensor.item(),
        "weights": [parameter.detach().float().tolist() for parameter in model.parameters()],
    }


def main():
    results = finite()
    results |= overflow_and_checkpoint()
    accelerator, model, optimizer = make(accumulation=2)
    results["accumulated"] = train(accelerator, model, optimizer, bad=(1,), window="attempt")
    results["after accumulation"] = summary(accelerator, model, optimizer)
    results |= refusals()
    results |= attached()
    results["trainer"] = [in_a_trainer(attach) for attach in (False, True)]
    (OUT / "result.json").write_text(json.dumps(results))


def finite():
    results = {}
    for name, cls in (("plain", accelerate.Accelerator), ("ours", accelerate_ext.Accelerator)):
        accelerator, model, optimizer = make(cls)
        train(accelerator, model, optimizer)
        results[f"finite {name}"] = [parameter.detach().float().tolist() for parameter in model.parameters()]
    return results


def overflow_and_checkpoint():
    results = {}
    accelerator, model, optimizer = make()
    results["seen"] = train(accelerator, model, optimizer, bad=(0, 3), window="attempt")
    results["after"] = summary(accelerator, model, optimizer)
    accelerator.check_ranks()
    accelerator.save_state(str(OUT / "checkpoint"))
    results["files"] = sorted(path.name for path in (OUT / "checkpoint").iterdir())

    (OUT / "checkpoint" / "applied_step.json").rename(OUT / "kept.json")
    accelerator, model, optimizer = make()
    accelerator.load_state(str(OUT / "checkpoint"))
    results["loaded without file"] = summary(accelerator, model, optimizer)
    (OUT / "kept.json").rename(OUT / "checkpoint" / "applied_step.json")
    accelerator, model, optimizer = make()
    accelerator.load_state(str(OUT / "checkpoint"))
    results["loaded"] = summary(accelerator, model, optimizer)
    return results


def refusals():
    results = {}
    accelerator, model, optimizer = make(max_consecutive_skips=3)
    try:
        train(accelerator, model, optimizer, batches=9, bad=range(9))
    except accelerate_ext.SkippedUpdatesError as error:
        results["error"] = str(error)
    try:
        make(skip_nonfinite=True)
    except ValueError as error:
        results["guard"] = str(error)
    return results


def attached():
    accelerator, model, optimizer = make(accelerate.Accelerator)
    accelerate_ext.attach(accelerator)
    train(accelerator, model, optimizer, bad=(1,))
    counts = summary(accelerator, model, optimizer)["counts"]
    accelerate_ext.detach(accelerator)
    return {"attached": counts, "detached": [type(accelerator).__module__, type(optimizer).__name__]}


class TrainerModel(nn.Module):
    """Overflows in the third forward pass."""

    def __init__(self):
        super().__init__()
        self.linear, self.forwards = nn.Linear(4, 1), 0

    def forward(self, x, labels=None):
        self.forwards += 1
        loss = self.linear(x.to(self.linear.weight.dtype)).float().pow(2).mean()
        return {"loss": loss * INF if self.forwards == 3 else loss}


class Told:
    def __init__(self):
        self.steps = []

    def update(self, t):
        self.steps.append(t)


def in_a_trainer(attach):
    """An unpatched Trainer with the callback."""
    import transformers

    AcceleratorState._reset_state()
    GradientState._reset_state()
    ema = Told()
    callback = accelerate_ext.AppliedStepCallback(ema=ema)
    arguments = transformers.TrainingArguments(
        output_dir=str(OUT / "trainer"),
        use_cpu=True,
        fp16=True,
        deepspeed=config_of(accumulation=1),
        max_steps=6,
        per_device_train_batch_size=2,
        optim="adamw_torch",
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    data = [{"x": torch.ones(4), "labels": 0} for _ in range(40)]
    trainer = transformers.Trainer(model=TrainerModel(), args=arguments, train_dataset=data, callbacks=[callback])
    if attach:
        accelerate_ext.attach(trainer.accelerator)
    trainer.train()
    return [ema.steps, callback.attempted_step, callback.applied_step, callback.skipped_steps]


def run_on_any_cpu():
    """DeepSpeed refuses float16 on CPUs without the instructions for it; torch computes it there too, slowly.

    And it compiles, for most of a minute, an operation by which processes share memory; there is one process here.
    """
    import deepspeed
    from deepspeed.accelerator import get_accelerator

    get_accelerator().is_fp16_supported = lambda: True
    deepspeed.ops.__compatible_ops__[get_accelerator().create_op_builder("ShareMemCommBuilder").NAME] = False


def leave():
    """Ends the process at once: a gloo thread that drops a tensor while the interpreter winds up aborts it, at times."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    run_on_any_cpu()
    main()
    leave()
