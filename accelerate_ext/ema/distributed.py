"""Tensors of which each process holds a part (DTensor, as FSDP2 makes them): the part, the whole, and where it lies.

Averages are kept of the parts, element by element, so that no process talks to another during an update.
"""

from __future__ import annotations

from typing import TypeGuard, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

T = TypeVar("T")


def is_sharded(tensor: torch.Tensor) -> TypeGuard[DTensor]:
    """Whether this process may hold only a part of the tensor."""
    return isinstance(tensor, DTensor)


def local(tensor: torch.Tensor) -> torch.Tensor:
    """The part in this process, sharing memory with the tensor; an ordinary tensor is its own part."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor.detach()


def gathered(part: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """The whole tensor, of which `part` is this process's share in the way that `like` is shared out.

    A collective: every process that holds a share must call it. An ordinary tensor comes back as it is.
    """
    if not isinstance(like, DTensor):
        return part
    joined = DTensor.from_local(
        part, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
    )
    return joined.full_tensor()


def place(like: torch.Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shape of this process's part, and its offset in the whole tensor."""
    if not isinstance(like, DTensor):
        return tuple(like.shape), (0,) * like.dim()
    shape, offset = compute_local_shape_and_global_offset(like.shape, like.device_mesh, like.placements)
    return tuple(shape), tuple(offset)


def is_first_copy(tensor: DTensor) -> bool:
    """Whether this process holds its part first, where several processes hold the same part."""
    coordinate = tensor.device_mesh.get_coordinate()
    if coordinate is None:
        return False
    return all(at == 0 or not how.is_replicate() for at, how in zip(coordinate, tensor.placements, strict=True))


def part_of(full: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """This process's part of a whole tensor, shared out as `like` is. No process talks to another."""
    shape, offset = place(like)
    return full[tuple(slice(at, at + size) for at, size in zip(offset, shape, strict=True))]


def copy_into(target: torch.Tensor, part: torch.Tensor, like: torch.Tensor) -> None:
    """Write into `target` the tensor of which `part` is this process's share in the way that `like` is shared out.

    A collective, unless both are shared out in the same way or neither is.
    """
    if _way(target) == _way(like):
        local(target).copy_(part)
        return
    full = gathered(part, like)
    local(target).copy_(part_of(full, target) if is_sharded(target) else full)


def _way(tensor: torch.Tensor) -> object:
    return (tensor.device_mesh, tensor.placements) if isinstance(tensor, DTensor) else None


def rank() -> int:
    """Rank of this process; 0 where there is only one."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def world_size() -> int:
    """Number of processes."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def from_first(value: T) -> T:
    """What the first process holds, which must be picklable. A collective where there are several processes."""
    if world_size() == 1:
        return value
    held = [value]
    dist.broadcast_object_list(held, src=0)
    return held[0]


def all_errors(error: BaseException | None) -> list[str]:
    """The errors of all processes as texts, those without one left out. A collective."""
    if world_size() == 1:
        return [] if error is None else [str(error)]
    gathered: list[str | None] = [None] * world_size()
    dist.all_gather_object(gathered, None if error is None else f"{error} (process {rank()})")
    return [text for text in gathered if text is not None]


def barrier() -> None:
    """Wait for all processes."""
    if world_size() > 1:
        dist.barrier()
