"""A loop under DDP on gloo: each rank has its own data, gradients are averaged, and both must skip together."""

import atexit
import os
import sys

import torch
from accelerate import Accelerator

accelerator = Accelerator(cpu=True)
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.utils.data.DataLoader(torch.randn(24, 4), batch_size=2)
model, optimizer, data = accelerator.prepare(model, optimizer, data)
global_step = 0
for batch in data:
    loss = model(batch).square().mean()
    accelerator.backward(loss)
    accelerator.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    if accelerator.sync_gradients:
        global_step += 1
print(f"rank {accelerator.process_index} of {accelerator.num_processes}: {global_step}")

# A gloo thread that drops a tensor while the interpreter winds up aborts the process, at times: leave before that.
atexit._run_exitfuncs()
sys.stdout.flush()
sys.stderr.flush()
os._exit(0)
