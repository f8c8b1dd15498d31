"""Trains a small network, keeps two averages and writes 16 snapshots of each; build any average from them afterwards.

python docs/examples/posthoc_ema.py SNAPSHOT_FOLDER
"""

import sys

import torch

from accelerate_ext import Accelerator
from accelerate_ext.ema import PostHocEMA, plan

MAX_APPLIED_STEPS = 2000


def main(directory: str) -> None:
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True)  # on a GPU: mixed_precision="fp16"

    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    inputs = torch.randn(4096, 8)
    data = torch.utils.data.TensorDataset(inputs, inputs.prod(dim=1, keepdim=True))
    loader = torch.utils.data.DataLoader(data, batch_size=32, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    snapshots = plan(MAX_APPLIED_STEPS, 16, sigma_rel=(0.05, 0.10))
    ema = PostHocEMA(accelerator.unwrap_model(model), plan=snapshots, directory=directory)
    for _ in accelerator.epochs(max_applied_steps=MAX_APPLIED_STEPS, updates_per_epoch=len(loader)):
        for batch, target in loader:
            with accelerator.attempt(model) as update:
                accelerator.backward(torch.nn.functional.mse_loss(model(batch), target))
                optimizer.step()
                optimizer.zero_grad()
            if update.applied:
                ema.update(accelerator.applied_step)  # writes the snapshots that are due
            if accelerator.applied_step >= MAX_APPLIED_STEPS:
                break
    print(f"applied {accelerator.applied_step} of {accelerator.attempted_step} updates, snapshots in {directory}")


if __name__ == "__main__":
    main(sys.argv[1])
