"""Training without a loss scale: the guard that skips non-finite gradients, and fp16 that nothing guards."""

from __future__ import annotations

from typing import Any

import accelerate
import torch
from accelerate.utils import DistributedType
from torch.amp import GradScaler


class NonFiniteGuard(GradScaler):
    """A GradScaler whose scale is 1 for ever: it changes no gradient, and keeps back updates that are not finite.

    Being a GradScaler, it hands a fused optimizer `found_inf` on the device and calls any other optimizer only when
    its gradients are finite. The answer is agreed over all ranks, so it does not matter which of them has the NaN.
    """

    def __init__(self, device: torch.device, agree_over_ranks: bool) -> None:
        super().__init__(device.type, init_scale=1.0)
        self._agree_over_ranks = agree_over_ranks
        self.scale(torch.ones((), device=device))  # makes the scale tensor

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A GradScaler leaves its scale tensor out of a pickle, and steps only once it has scaled something."""
        self.__dict__.update(state)
        self.scale(torch.ones((), device=self._device))

    def update(self, new_scale: float | torch.Tensor | None = None) -> None:
        """Forget the attempt; the scale stays 1."""
        super().update(new_scale=1.0)

    def _unscale_grads_(
        self,
        optimizer: torch.optim.Optimizer,
        inv_scale: torch.Tensor,
        found_inf: torch.Tensor,
        allow_fp16: bool,
    ) -> dict[torch.device, torch.Tensor]:
        per_device: dict[torch.device, Any] = super()._unscale_grads_(optimizer, inv_scale, found_inf, True)
        if not per_device:  # no gradient on this rank; the others still wait for its answer
            per_device = {found_inf.device: found_inf}
        if self._agree_over_ranks:
            per_device = {device: _largest_over_ranks(flag) for device, flag in per_device.items()}
        return per_device


def _largest_over_ranks(found_inf: torch.Tensor) -> torch.Tensor:
    torch.distributed.all_reduce(found_inf, op=torch.distributed.ReduceOp.MAX)
    return found_inf


_ENGINES = (DistributedType.DEEPSPEED, DistributedType.MEGATRON_LM)


def warning_without_scaler(accelerator: accelerate.Accelerator) -> str | None:
    """What to say once updates are made without a GradScaler although fp16 was asked for; None where it was not.

    An engine keeps a loss scale of its own. Accelerate makes no scaler on a CPU, and tells nobody.
    """
    if accelerator.distributed_type in _ENGINES or accelerator.mixed_precision != "fp16":
        return None
    return (
        f'`mixed_precision="fp16"` was asked for, but no GradScaler came of it on this device ({accelerator.device}): '
        "the loss is not scaled, and an update whose gradients are not finite is applied, not skipped. Use "
        '`skip_nonfinite=True`, or `mixed_precision="bf16"`, or set `accelerator.scaler` and '
        "`accelerator.native_amp = True` before `prepare`"
    )


def check_guard(accelerator: accelerate.Accelerator) -> None:
    """Make sure that `skip_nonfinite` can do what it says.

    Raises: ValueError where the update is out of this package's hands.
    """
    kind = accelerator.distributed_type
    if kind in (*_ENGINES, DistributedType.XLA):
        raise ValueError(
            f"`skip_nonfinite` must be off with {kind.value}, whose engine makes the update itself; use its own "
            "overflow check"
        )


def guard_for(accelerator: accelerate.Accelerator) -> NonFiniteGuard:
    """The guard for an Accelerator. With a GradScaler it has nothing to do: the scaler comes first."""
    check_guard(accelerator)
    return NonFiniteGuard(accelerator.device, agree_over_ranks=accelerator.num_processes > 1)
