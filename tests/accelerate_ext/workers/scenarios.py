"""Training on two processes, DDP or FSDP2, plain or ours. Each process writes what it saw to `OUT/rank.json`.

Usage: scenarios.py {ddp,fsdp2} OUT
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path

import accelerate
import torch
from accelerate.state import AcceleratorState, GradientState
from torch import nn

import accelerate_ext
from accelerate_ext import RankDisagreementError
from accelerate_ext.ema import EMA

KIND, OUT = sys.argv[1], Path(sys.argv[2])
RANK = int(os.environ["RANK"])
INF = float("inf")


def make_accelerator(cls=accelerate_ext.Accelerator, scaled=True, **options):
    AcceleratorState._reset_state()
    GradientState._reset_state()
    if KIND == "fsdp2":
        options["fsdp_plugin"] = accelerate.FullyShardedDataParallelPlugin(fsdp_version=2, reshard_after_forward=True)
    accelerator = cls(cpu=True, **options)
    if scaled:
        accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
        accelerator.native_amp = True
    return accelerator


def prepare(accelerator, optimizer="adamw"):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    fused = optimizer.endswith("fused")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05, fused=fused)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)
    return accelerator.prepare(model, optimizer, scheduler)


def train(accelerator, model, optimizer, scheduler, updates=6, bad=(), guard=False):
    """In attempts of `bad` the loss of rank 1 is infinite, before gradients are reduced."""
    generator = torch.Generator().manual_seed(RANK)
    applied = []
    for attempt in range(updates):
        batch = torch.randn(2, 4, generator=generator)
        with accelerator.accumulate(model):
            loss = model(batch).pow(2).mean()
            is_bad = attempt in bad and RANK == 1
            accelerator.backward(loss * INF if is_bad else loss)
            if not (guard and is_bad):
                optimizer.step()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                scheduler.step()
            optimizer.zero_grad()
        applied.append(getattr(accelerator, "update_applied", None))
    return applied


def weights(model):
    values = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters()]
    return [value.detach().tolist() for value in values]


def counts(accelerator):
    return [accelerator.attempted_step, accelerator.applied_step, accelerator.skipped_steps]


def finite(cls):
    accelerator = make_accelerator(cls)
    model, optimizer, scheduler = prepare(accelerator)
    train(accelerator, model, optimizer, scheduler)
    return {"weights": weights(model), "last_epoch": scheduler.scheduler.last_epoch, "lr": scheduler.get_last_lr()}


def overflow(optimizer_kind):
    accelerator = make_accelerator()
    model, optimizer, scheduler = prepare(accelerator, optimizer_kind)
    applied = train(accelerator, model, optimizer, scheduler, bad=(1, 4))
    accelerator.check_ranks()
    accelerator.save_state(str(OUT / f"checkpoint {optimizer_kind}"))
    again = make_accelerator()
    model_again, optimizer, _ = prepare(again, optimizer_kind)
    again.load_state(str(OUT / f"checkpoint {optimizer_kind}"))
    return {
        "applied": applied,
        "counts": counts(accelerator),
        "tensor": accelerator.applied_step_tensor.item(),
        "scale": accelerator.scaler.get_scale(),
        "finite": all(torch.tensor(weight).isfinite().all().item() for weight in weights(model)),
        "weights": weights(model),
        "last_epoch": scheduler.scheduler.last_epoch,
        "loaded counts": counts(again),
        "loaded optimizer": optimizer.applied_step,
        "loaded weights": weights(model_again),
    }


def helper():
    """A checkpoint before the first update: the helper of torch steps once."""
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

    accelerator = make_accelerator(scaled=False)
    model, optimizer, _ = prepare(accelerator)
    calls = []
    optimizer.optimizer.register_step_post_hook(lambda *args: calls.append(1))
    get_optimizer_state_dict(model, optimizer)
    return {"steps": len(calls), "counts": counts(accelerator)}


def nonfinite():
    accelerator = make_accelerator(scaled=False, skip_nonfinite=True)
    model, optimizer, scheduler = prepare(accelerator)
    applied = train(accelerator, model, optimizer, scheduler, bad=(1,))
    accelerator.check_ranks()
    return {"applied": applied, "weights": weights(model)}


def nonfinite_shard_only():
    """The gradient is spoiled behind the reduction, on one rank: without agreement the ranks would part."""
    accelerator = make_accelerator(scaled=False, skip_nonfinite=True)
    model, optimizer, _ = prepare(accelerator)
    with accelerator.attempt(model) as update:
        accelerator.backward(model(torch.ones(2, 4)).mean())
        if RANK == 1:
            grad = next(iter(model.parameters())).grad
            local = grad.to_local() if hasattr(grad, "to_local") else grad
            local.fill_(INF)
        optimizer.step()
        optimizer.zero_grad()
    return {"outcome": update.outcome, "finite": all(torch.tensor(w).isfinite().all().item() for w in weights(model))}


def disagreement():
    """A guard written by hand that only one rank obeys; then a rank that makes an attempt of its own."""
    accelerator = make_accelerator(scaled=False)
    model, optimizer, scheduler = prepare(accelerator)
    train(accelerator, model, optimizer, scheduler, updates=3, bad=(1,), guard=True)
    asks = (accelerator.check_ranks, lambda: accelerator.save_state(str(OUT / "parted")))
    messages = [refusal(ask) for ask in asks]
    if RANK == 1:
        with accelerator.attempt(model):
            accelerator.backward(torch.ones(1, requires_grad=True).sum())  # of nothing that the other rank waits for
            for parameter in model.parameters():
                parameter.grad = torch.zeros_like(parameter)
            optimizer.step()
    attempts = refusal(accelerator.check_ranks)
    return {"messages": messages, "attempts": attempts, "saved": (OUT / "parted").exists()}


def refusal(ask):
    try:
        ask()
    except RankDisagreementError as error:
        return str(error)
    return "no error"


def raw_backward():
    accelerator = make_accelerator(scaled=False)
    model, optimizer, _ = prepare(accelerator)
    for _ in range(3):
        model(torch.ones(2, 4)).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return {"counts": counts(accelerator)}


def average():
    """An average of the weights travels in the checkpoint, sharded or not."""
    accelerator = make_accelerator()
    model, optimizer, scheduler = prepare(accelerator)
    ema = EMA(model, decay=0.5)
    accelerator.register_average(ema)
    for _ in range(3):
        train(accelerator, model, optimizer, scheduler, updates=1)
        ema.update(accelerator.applied_step)
    before = whole_averages(ema, model)
    accelerator.save_state(str(OUT / "with average"))
    train(accelerator, model, optimizer, scheduler, updates=1)
    ema.update(accelerator.applied_step)
    moved = whole_averages(ema, model) != before
    accelerator.load_state(str(OUT / "with average"))
    ema.update(accelerator.applied_step)  # seen already: changes nothing
    return {"step": ema.step, "moved": moved, "same": whole_averages(ema, model) == before}


def whole_averages(ema, model):
    with ema.averaged_weights():
        return weights(model)


def main():
    results = {}
    scenarios = {
        "plain": lambda: finite(accelerate.Accelerator),
        "ours": lambda: finite(accelerate_ext.Accelerator),
        "overflow adamw": lambda: overflow("adamw"),
        "overflow adamw fused": lambda: overflow("adamw fused"),
        "helper": helper,
        "nonfinite": nonfinite,
        "nonfinite on one rank": nonfinite_shard_only,
        "disagreement": disagreement,
        "raw backward": raw_backward,
        "average": average,
    }
    for name, scenario in scenarios.items():
        results[name] = scenario()
    (OUT / f"{RANK}.json").write_text(json.dumps(results))
    # A gloo thread that still drops a tensor aborts a process that winds up, or waits for it for ever, at times.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
