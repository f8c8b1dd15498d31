"""One of several processes that hold parts of a model (FSDP2 on gloo) and keep averages of it.

Usage: RANK=0 WORLD_SIZE=2 sharded.py FOLDER. Leaves snapshots, states and what each process saw in FOLDER.
"""

import errno
import importlib.util
import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from torch import nn
from torch.distributed.tensor import DTensor

from accelerate_ext.ema import PostHocEMA

try:
    from torch.distributed.fsdp import fully_shard
except ImportError:  # its place before torch 2.6
    from torch.distributed._composable.fsdp import fully_shard


def build():
    """Sizes that two processes cannot share out evenly, and one that leaves a process nothing."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(7, 5),
        nn.BatchNorm1d(5),
        nn.Linear(5, 1),
        nn.Linear(1, 30_011).requires_grad_(False),
        nn.Linear(3, 9),
    )


def share_out(model):
    for layer in model:
        if list(layer.parameters()):
            fully_shard(layer)
    return fully_shard(model)


def copy_across(ema, folder):
    """From averages in parts to a whole model, and from averages of that to another model in parts."""
    whole, parts = build(), share_out(build())
    for model in (whole, parts):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
    ema.copy_to(whole)
    PostHocEMA(whole).copy_to(parts)
    copied = {name: t.full_tensor() if isinstance(t, DTensor) else t for name, t in parts.state_dict().items()}
    torch.save({"whole": whole.state_dict(), "parts": copied}, folder / f"copied-{dist.get_rank()}.pt")


def move(model, step):
    """The same whole weights at a step, however they are held."""
    generator = torch.Generator().manual_seed(step)
    with torch.no_grad():
        for parameter in model.parameters():
            if not parameter.requires_grad:
                continue
            noise = torch.randn(parameter.shape, generator=generator)
            if isinstance(parameter, DTensor):
                size = -(-noise.shape[0] // dist.get_world_size())
                start = dist.get_rank() * size
                noise = noise[start : start + size]
                parameter.to_local().add_(noise)
            else:
                parameter.add_(noise)


def save_checkpoint(model, folder):
    """A plain checkpoint in parts, by torch.distributed.checkpoint, and beside it the whole one."""
    if importlib.util.find_spec("torch.distributed.checkpoint.hf_storage"):  # not in the oldest torch
        from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter

        writer = HuggingFaceStorageWriter(str(folder / "parts"), save_distributed=True)
        dcp.save(model.state_dict(), storage_writer=writer)
    whole = {name: t.full_tensor() if isinstance(t, DTensor) else t for name, t in model.state_dict().items()}
    if dist.get_rank() == 0:
        (folder / "whole").mkdir(parents=True)
        save_file(
            {name: tensor.contiguous() for name, tensor in whole.items()}, folder / "whole" / "model.safetensors"
        )


def error_of(action):
    try:
        action()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def break_the_disk(*arguments):
    raise OSError(errno.EIO, "Input/output error")


def publish_in_the_background(ema, folder, told):
    """Snapshots that are not waited for, gathered and in parts; then the same with the disk of one process broken."""
    rank, fsync = dist.get_rank(), os.fsync
    for kind, breaks, asked in (("gathered", 0, ema.wait_for_snapshots), ("sharded", 1, ema.state_dict)):
        is_sharded = kind == "sharded"
        ema.snapshot(folder / f"background {kind}", sharded=is_sharded, wait=False)
        ema.wait_for_snapshots()
        os.fsync = break_the_disk if rank == breaks else fsync
        ema.snapshot(folder / f"broken {kind}", sharded=is_sharded, wait=False)
        told[f"broken, {kind}"] = error_of(asked)
        os.fsync = fsync
        dist.barrier()
        told[f"left, {kind}"] = os.listdir(folder / f"broken {kind}")
        dist.barrier()
        ema.snapshot(folder / f"broken {kind}", sharded=is_sharded)


def main(folder: Path) -> None:
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", init_method=f"file://{folder / 'rendezvous'}", rank=rank, world_size=world)
    model = share_out(build())
    ema = PostHocEMA(model)
    told = {"run": ema.run}
    for step in range(1, 21):
        move(model, step)
        ema.update(step)
        if step % 5 == 0:
            save_checkpoint(model, folder / "checkpoints" / f"step-{step}")
    dcp.save(model.state_dict(), checkpoint_id=folder / "pickled" / "step-20" / "pytorch_model_fsdp_0")
    copy_across(ema, folder)
    ema.snapshot(folder / "gathered")
    ema.snapshot(folder / "sharded", sharded=True)
    told["parts"] = {name: list(average.shape) for name, average in ema.averages().items()}
    state = ema.state_dict()
    if rank == 0:
        torch.save(state, folder / "state.pt")
    dist.barrier()
    before = {name: p.full_tensor().clone() for name, p in model.named_parameters()}
    with ema.averaged_weights(0.10):
        lent = {name: p.full_tensor().clone() for name, p in model.named_parameters()}
    if rank == 0:
        torch.save(lent, folder / "lent.pt")
    told["is_restored"] = all(torch.equal(before[name], p.full_tensor()) for name, p in model.named_parameters())

    resumed = PostHocEMA(model)
    resumed.load_state_dict(torch.load(folder / "state.pt", weights_only=True))
    for step in range(21, 26):
        move(model, step)
        resumed.update(step)
    resumed.snapshot(folder / "resumed")
    publish_in_the_background(resumed, folder, told)

    (folder / "file").write_text("")
    told["a file in the way"] = error_of(lambda: resumed.snapshot(folder / "file"))
    with torch.no_grad():
        if rank == world - 1:
            model[0].weight.to_local().fill_(float("nan"))
    resumed.update(26)
    told["nan, gathered"] = error_of(lambda: resumed.snapshot(folder / "resumed"))
    told["nan, sharded"] = error_of(lambda: resumed.snapshot(folder / "nan", sharded=True))
    (folder / f"told-{rank}.json").write_text(json.dumps(told))
    leave()


def leave():
    """Ends the process at once: a gloo thread that still drops a tensor aborts it, or waits for it for ever, at times."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
