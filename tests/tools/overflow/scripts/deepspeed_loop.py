"""A loop on the real DeepSpeed engine, on the CPU in fp16: the update happens inside `accelerator.backward`.

DeepSpeed refuses float16 on CPUs without the instructions for it; torch computes it there too, slowly. And it compiles,
for most of a minute, an operation by which processes share memory; there is one process here.
"""

import atexit
import os
import sys

import deepspeed
import torch
from accelerate import Accelerator
from accelerate.utils import DeepSpeedPlugin
from deepspeed.accelerator import get_accelerator

get_accelerator().is_fp16_supported = lambda: True
deepspeed.ops.__compatible_ops__[get_accelerator().create_op_builder("ShareMemCommBuilder").NAME] = False

config = {
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 1,
    "fp16": {"enabled": True, "initial_scale_power": 4, "hysteresis": 1, "loss_scale_window": 1000},
    "zero_optimization": {"stage": 1},
    "zero_allow_untested_optimizer": True,
}
accelerator = Accelerator(deepspeed_plugin=DeepSpeedPlugin(hf_ds_config=config))
torch.manual_seed(0)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
model, optimizer = accelerator.prepare(model, optimizer)
global_step = 0
for _ in range(4):
    batch = torch.randn(2, 4).to(accelerator.device, torch.float16)
    accelerator.backward(model(batch).float().pow(2).mean())
    optimizer.step()
    optimizer.zero_grad()
    global_step += 1  # noqa: SIM113
engine = accelerator.deepspeed_engine_wrapped.engine
print(f"engine: {engine.global_steps} steps, {engine.skipped_steps} skipped")

# A gloo thread that drops a tensor while the interpreter winds up aborts the process, at times: leave before that.
atexit._run_exitfuncs()
sys.stdout.flush()
sys.stderr.flush()
os._exit(0)
