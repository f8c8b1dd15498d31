"""A loop of the shape of the text-to-image example: accumulation, clipping, EMA, a loss window, logs and checkpoints."""

import argparse
import copy
import os
import signal

import torch
from accelerate import Accelerator
from tqdm.auto import tqdm


class EMAModel:
    """An exponential average with a counter of its own."""

    def __init__(self, parameters, decay=0.9):
        self.shadow = [copy.deepcopy(parameter.detach()) for parameter in parameters]
        self.decay = decay
        self.optimization_step = 0

    @torch.no_grad()
    def step(self, parameters):
        self.optimization_step += 1
        for slow, fast in zip(self.shadow, parameters, strict=True):
            slow.lerp_(fast, 1 - self.decay)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--max_train_steps", type=int, default=6)
    parser.add_argument("--checkpointing_steps", type=int, default=3)
    parser.add_argument("--output_dir", default="out")
    parser.add_argument("--die_at", type=int)
    args = parser.parse_args()
    torch.manual_seed(0)
    accelerator = Accelerator(gradient_accumulation_steps=2, cpu=True)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    lr_scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    train_dataloader = torch.utils.data.DataLoader(torch.randn(32, 8), batch_size=2)
    ema_model = EMAModel(model.parameters())
    model, optimizer, train_dataloader, lr_scheduler = accelerator.prepare(
        model, optimizer, train_dataloader, lr_scheduler
    )
    global_step = 0
    progress_bar = tqdm(range(args.max_train_steps), desc="Steps")
    train_loss = 0.0
    for batch in train_dataloader:
        with accelerator.accumulate(model):
            loss = model(batch).square().mean() + 1
            avg_loss = accelerator.gather(loss.repeat(2)).mean()
            train_loss += avg_loss.item() / accelerator.gradient_accumulation_steps
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            lr_scheduler.step()
            optimizer.zero_grad()

        if accelerator.sync_gradients:
            ema_model.step(model.parameters())
            progress_bar.update(1)
            global_step += 1
            accelerator.log({"train_loss": train_loss}, step=global_step)
            train_loss = 0.0
            if global_step % args.checkpointing_steps == 0:
                accelerator.save_state(os.path.join(args.output_dir, f"checkpoint-{global_step}"))

        if global_step == args.die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        if global_step >= args.max_train_steps:
            break
    print(f"trained {global_step} steps")


if __name__ == "__main__":
    main()
