"""Evidence that a backward pass has taken place: without one, an optimizer's `step()` is not an update attempt."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch.utils.hooks import RemovableHandle


class BackwardPasses:
    """Counts backward passes, as far as telling "one since then" from "none since then" needs it.

    `Accelerator.backward()` reports itself. A loop that calls `loss.backward()` is seen through hooks on the
    parameters, which are taken off again at the first pass that reported itself: they cost about a microsecond each.
    """

    def __init__(self) -> None:
        self.count = 0
        self._handles: list[tuple[torch.Tensor, RemovableHandle]] = []
        self._reports_itself = False

    def report(self) -> None:
        """A backward pass begins."""
        self.count += 1
        if not self._reports_itself:
            self._reports_itself = True
            self.unhook()

    def watch(self, parameters: Iterable[torch.Tensor]) -> None:
        """Notice backward passes that reach these parameters without being reported."""
        if self._reports_itself:
            return
        for parameter in parameters:
            if parameter.requires_grad and parameter.is_leaf:
                self._handles.append((parameter, parameter.register_post_accumulate_grad_hook(self._noticed)))

    def unhook(self) -> None:
        for parameter, handle in self._handles:
            handle.remove()
            if not parameter._post_accumulate_grad_hooks:  # else autograd goes on calling an empty collection
                parameter._post_accumulate_grad_hooks = None  # type: ignore[assignment]
        self._handles = []

    def _noticed(self, parameter: torch.Tensor) -> None:
        self.count += 1
