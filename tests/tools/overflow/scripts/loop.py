"""One loop with many switches: each test says what is special about it."""

import argparse
import os

import torch
from accelerate import Accelerator
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from tqdm.auto import tqdm

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=6)
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--fused", action="store_true")
parser.add_argument("--lr", type=float, default=0.01)
parser.add_argument("--raw_scheduler", action="store_true")
parser.add_argument("--nan_guard", action="store_true")
parser.add_argument("--start", type=int, default=0)
parser.add_argument("--average", choices=["averaged_model", "ours", "none"], default="averaged_model")
parser.add_argument("--no_bar", action="store_true")
parser.add_argument("--save")
parser.add_argument("--fail", type=int)
options = parser.parse_args()


def make_average(model):
    if options.average == "ours":
        from accelerate_ext.ema import EMA

        return EMA(model, decay=0.9)
    return AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))


def is_finite(model):
    return all(bool(parameter.grad.isfinite().all()) for parameter in model.parameters())


def main():
    torch.manual_seed(0)
    accelerator = Accelerator(gradient_accumulation_steps=options.accumulate, cpu=True)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.1), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr, fused=options.fused)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    data = torch.utils.data.DataLoader(torch.randn(48, 8), batch_size=2, shuffle=True)
    ema = make_average(model)
    model, optimizer, data = accelerator.prepare(model, optimizer, data)
    if not options.raw_scheduler:
        scheduler = accelerator.prepare(scheduler)
    global_step = options.start
    applied = 0
    bar = tqdm(total=options.steps, disable=options.no_bar)
    for batch in data:
        with accelerator.accumulate(model):
            loss = model(batch).square().mean() + 1
            accelerator.backward(loss)
            if options.nan_guard and not is_finite(model):
                optimizer.zero_grad()
                continue
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        if not accelerator.sync_gradients:
            continue
        applied += not accelerator.optimizer_step_was_skipped
        if options.average == "ours":
            ema.update(applied)
        elif options.average == "averaged_model":
            ema.update_parameters(model)
        bar.update(1)
        global_step += 1
        if global_step - options.start == options.fail:
            raise RuntimeError("this run was told to fail")
        if global_step - options.start >= options.steps:
            break
    if options.save:
        averages = ema.averages() if options.average == "ours" else ema.state_dict()
        everything = {"model": model.state_dict(), "average": averages, "optimizer": optimizer.state_dict()}
        torch.save([everything, torch.rand(3)], options.save)
    print(f"global_step {global_step} in process {os.getpid()}")


if __name__ == "__main__":
    main()
