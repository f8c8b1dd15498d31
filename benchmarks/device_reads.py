"""Counts the moments at which the host waits for the device to learn a value, in place of guessing them."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

# `.item()`, `bool()`, `int()`, `float()` and `if tensor:` all end in the first; the others fetch whole tensors
_READS = {
    torch.ops.aten._local_scalar_dense.default,
    torch.ops.aten.is_nonzero.default,
    torch.ops.aten.equal.default,
    torch.ops.aten.nonzero.default,
}


class DeviceReads(TorchDispatchMode):
    """While entered, counts reads of tensor values by the host in `count`.

    Works on any device, since it sees operations and not their duration: on a CPU it counts what would be a
    synchronisation on an accelerator.
    """

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _READS:
            self.count += 1
        return func(*args, **(kwargs or {}))
