"""A model in parts on a mesh of a single process, as a launcher leaves it on one device; and larger meshes, pretended."""

import time

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard
from torch.testing._internal.distributed.fake_pg import FakeStore

from accelerate_ext.ema import PostHocEMA, SnapshotError, distributed, list_snapshots

try:
    from torch.distributed.fsdp import fully_shard
except ImportError:  # its place before torch 2.6
    from torch.distributed._composable.fsdp import fully_shard


@pytest.fixture
def mesh():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    time.sleep(
        0.02
    )  # lets gloo's threads drop their tensors: the group waits for them and keeps what they need for it
    dist.destroy_process_group()


def run(mesh=None, steps=4):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 3), nn.Tanh(), nn.Linear(3, 2))
    if mesh is not None:
        fully_shard(model, mesh=mesh)
    ema = PostHocEMA(model)
    for step in range(1, steps + 1):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1 + 0.1 * step)
        ema.update(step)
    return model, ema


def test_its_snapshots_hold_what_those_of_the_whole_model_hold(mesh, tmp_path):
    run()[1].snapshot(tmp_path / "whole")
    run(mesh)[1].snapshot(tmp_path / "parts")
    whole, parts = (list_snapshots(tmp_path / name) for name in ("whole", "parts"))
    assert [(s.t, s.sigma_rel) for s in parts] == [(s.t, s.sigma_rel) for s in whole]
    for one, other in zip(whole, parts, strict=True):
        wanted, got = (load_file(snapshot.paths[0]) for snapshot in (one, other))
        assert got.keys() == wanted.keys()
        assert all(torch.equal(got[name], wanted[name]) for name in wanted)


def test_an_error_of_the_process_is_raised_once_and_leaves_no_snapshot(mesh, tmp_path):
    model, ema = run(mesh)
    with torch.no_grad():
        next(model.parameters()).fill_(float("nan"))
    ema.update(5)
    with pytest.raises(SnapshotError, match=r"0\.weight"):
        ema.snapshot(tmp_path)
    assert list_snapshots(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


SHARINGS = {  # torch 2.5 takes strided parts to be even
    "by rows, the rows of copies": (10, Shard(0), Replicate()),
    "copies of rows": (10, Replicate(), Shard(0)),
    "by rows and columns": (10, Shard(0), Shard(1)),
    "by rows, shared out again": (10, Shard(0), Shard(0)),
    "by rows of rows, as FSDP2 over tensor parallelism": (8, _StridedShard(0, split_factor=2), Shard(0)),
}


@pytest.mark.parametrize(("rows", "one", "other"), SHARINGS.values(), ids=SHARINGS)
def test_what_all_processes_of_a_mesh_write_is_every_element_once(rows, one, other):
    written, shape = torch.zeros(rows, 6), torch.Size((rows, 6))
    for rank in range(4):
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=4)
        try:
            mesh = init_device_mesh("cpu", (2, 2))
            like = DTensor.from_local(
                torch.zeros(1, 1), mesh, (one, other), run_check=False, shape=shape, stride=(6, 1)
            )
            if distributed.is_first_copy(like):
                distributed.part_of(written, like).add_(1)
        finally:
            dist.destroy_process_group()
    assert torch.equal(written, torch.ones(shape))
