"""GradScaler inside one attempt: gradients are unscaled once an optimizer, the scale is updated once, at the end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.amp import GradScaler

from .update import Verdict, sent


class StepProbe:
    """Stands in for a GradScaler during one `AcceleratedOptimizer.step()`.

    It passes everything on but `update()`, which belongs to the end of the attempt, and notes what became of the
    step. A GradScaler calls the `step()` of a fused optimizer always, and leaves the answer in `optimizer.found_inf`
    for as long as that call takes; the `step()` of any other optimizer is called only when its gradients are finite.
    """

    def __init__(self, scaler: GradScaler) -> None:
        self._scaler = scaler
        self._called = False
        self._found_inf: object = None

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        wrapped = optimizer.step
        was_replaced = "step" in vars(optimizer)  # by Accelerate or a scheduler

        def watched(*args: Any, **kwargs: Any) -> Any:
            self._called = True
            self._found_inf = getattr(optimizer, "found_inf", None)
            return wrapped(*args, **kwargs)

        optimizer.step = watched  # type: ignore[method-assign]
        try:
            return self._scaler.step(optimizer, *args, **kwargs)
        finally:
            if was_replaced:
                optimizer.step = wrapped  # type: ignore[method-assign]
            else:
                del optimizer.step

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Left to the end of the attempt."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scaler, name)

    @property
    def verdict(self) -> Verdict:
        if not self._called:
            return Verdict(skipped=True)
        if isinstance(self._found_inf, torch.Tensor):
            return Verdict(found_inf=self._found_inf)
        return Verdict(skipped=False)


class ScalerTurn:
    """What has been asked of a GradScaler since its last `update()`."""

    def __init__(self) -> None:
        self._scaler: GradScaler | None = None
        self._stepped: set[int] = set()
        self._unscaled: dict[int, int] = {}  # by id(optimizer): how many backward passes there were then

    def is_unscaled(self, optimizer: torch.optim.Optimizer, passes: int) -> bool:
        """Whether the optimizer's gradients, complete after so many backward passes, are unscaled already."""
        return self._unscaled.get(id(optimizer)) == passes

    def was_unscaled(self, scaler: GradScaler, optimizer: torch.optim.Optimizer, passes: int) -> None:
        self._scaler = scaler
        self._unscaled[id(optimizer)] = passes

    def before_step(self, scaler: GradScaler, optimizer: torch.optim.Optimizer) -> None:
        """A second step of one optimizer in one attempt starts from new gradients, scaled by the same scale."""
        if id(optimizer) in self._stepped:
            self._rearm(scaler, optimizer)

    def stepped(self, scaler: GradScaler, optimizer: torch.optim.Optimizer) -> None:
        self._scaler = scaler
        self._stepped.add(id(optimizer))

    def gradients_dropped(self, optimizer: torch.optim.Optimizer) -> None:
        """The optimizer's gradients were reset: the next ones are not unscaled."""
        if self._scaler is not None and id(optimizer) in self._unscaled and id(optimizer) not in self._stepped:
            self._rearm(self._scaler, optimizer)

    def has_stepped(self, optimizer: torch.optim.Optimizer) -> bool:
        return id(optimizer) in self._stepped

    @property
    def is_update_due(self) -> bool:
        """Whether an optimizer has stepped since the last `update()`."""
        return bool(self._stepped)

    def update(self) -> None:
        """Run the `update()` that is due after steps, or after unscaled gradients that a loop did not use."""
        scaler, stepped = self._scaler, bool(self._stepped)
        self._scaler = None
        self._stepped.clear()
        self._unscaled.clear()
        if scaler is None:
            return
        if stepped or _has_checked(scaler):
            scaler.update()

    def _rearm(self, scaler: GradScaler, optimizer: torch.optim.Optimizer) -> None:
        """Let the scaler treat the optimizer as new, and keep what it found for the next `update()`."""
        if scaler.is_enabled() and id(optimizer) in scaler._per_optimizer_states:
            states = scaler._per_optimizer_states
            states[-len(states) - 1] = states.pop(id(optimizer))  # negative: never an id()


def _has_checked(scaler: GradScaler) -> bool:
    if not scaler.is_enabled():
        return False
    return any(state["found_inf_per_device"] for state in scaler._per_optimizer_states.values())


def share_found_inf(scaler: GradScaler, optimizers: Sequence[torch.optim.Optimizer]) -> None:
    """Let unscaled optimizers skip where one of them does. No synchronisation where all are on one device."""
    states = [scaler._per_optimizer_states[id(optimizer)] for optimizer in optimizers]
    flags = [flag for state in states for flag in state["found_inf_per_device"].values()]
    if len(flags) < 2:
        return
    found = torch.stack([sent(flag, flags[0].device) for flag in flags]).amax(dim=0)
    for flag in flags:
        flag.copy_(sent(found, flag.device))


def copy_of_scale(scaler: GradScaler) -> torch.Tensor | None:
    """The loss scale as it is now, left on the device; None before the first loss was scaled."""
    scale = getattr(scaler, "_scale", None)
    return None if scale is None else scale.clone()


def owns_any(optimizer: torch.optim.Optimizer, parameter_ids: set[int]) -> bool:
    """Whether the optimizer updates one of the parameters with these ids."""
    return any(id(parameter) in parameter_ids for group in optimizer.param_groups for parameter in group["params"])


def holds_gradients(optimizer: torch.optim.Optimizer) -> bool:
    """Whether any parameter of the optimizer has a gradient."""
    return any(parameter.grad is not None for group in optimizer.param_groups for parameter in group["params"])
