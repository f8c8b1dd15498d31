"""A training loop of one's own that counts applied updates. Runs in a second, on a CPU.

Two of the batches below overflow. Every epoch number, count and loss scale is what a run prints:

    epoch 0: 4 attempted, 3 applied, 1 skipped, loss scale 32768
    epoch 1: 8 attempted, 7 applied, 1 skipped, loss scale 32768
    epoch 2: 12 attempted, 10 applied, 2 skipped, loss scale 16384
    applied 10 of 12 updates; the average saw steps 1 2 3 4 5 6 7 8 9 10
    a loop that counts boundaries would have said 12
"""

from __future__ import annotations

import torch

from accelerate_ext import Accelerator

MAX_APPLIED_STEPS = 10
OVERFLOWS = {3, 33}  # micro-batches whose loss is too large for float16


class Average:
    """Keeps the mean of the weights; `accelerate_ext.ema` has better ones with the same `update`."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model
        self.weight = torch.zeros_like(next(model.parameters()))
        self.seen: list[int] = []

    def update(self, step: int) -> None:
        self.weight.lerp_(next(self.model.parameters()).detach(), 1 / step)
        self.seen.append(step)


def main() -> None:
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
    accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)  # on a GPU: mixed_precision="fp16"
    accelerator.native_amp = True

    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=MAX_APPLIED_STEPS)
    loader = torch.utils.data.DataLoader(torch.randn(14 * 2, 8), batch_size=2)  # 14 batches: the last window is short
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    average = Average(accelerator.unwrap_model(model))

    batches = 0
    for epoch in accelerator.epochs(max_applied_steps=MAX_APPLIED_STEPS, updates_per_epoch=4):
        for batch in loader:
            with accelerator.attempt(model) as update:
                loss = model(batch).pow(2).mean()
                accelerator.backward(loss * float("inf") if batches in OVERFLOWS else loss)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            batches += 1
            if update.applied:
                average.update(accelerator.applied_step)
            if accelerator.applied_step >= MAX_APPLIED_STEPS:
                break
        print(
            f"epoch {epoch}: {accelerator.attempted_step} attempted, {accelerator.applied_step} applied, "
            f"{accelerator.skipped_steps} skipped, loss scale {accelerator.scaler.get_scale():.0f}"
        )
    print(
        f"applied {accelerator.applied_step} of {accelerator.attempted_step} updates; "
        f"the average saw steps {' '.join(map(str, average.seen))}"
    )
    print(f"a loop that counts boundaries would have said {accelerator.attempted_step}")


if __name__ == "__main__":
    main()
