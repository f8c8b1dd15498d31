"""The block of one micro-batch."""

from __future__ import annotations

from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING

import torch

from .update import Update

if TYPE_CHECKING:
    from .accelerator import Accelerator


class Window(AbstractContextManager["Update | None"]):
    """Accelerate's `accumulate()`, and what became of the update. A class, since it is entered for every batch."""

    __slots__ = ("_accelerator", "_inner", "_models", "_yields_update")

    def __init__(
        self,
        accelerator: Accelerator,
        inner: AbstractContextManager[None],
        models: tuple[torch.nn.Module, ...],
        yields_update: bool,
    ) -> None:
        self._accelerator = accelerator
        self._inner = inner
        self._models = models
        self._yields_update = yields_update

    def __enter__(self) -> Update | None:
        update = self._accelerator._attempts.open_window(self._models)
        self._inner.__enter__()
        return update if self._yields_update else None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        attempts = self._accelerator._attempts
        try:
            handled = self._inner.__exit__(kind, error, trace)
        except BaseException:
            attempts.abandon_window()
            raise
        if error is not None:
            attempts.abandon_window()
        else:
            attempts.close_window(self._accelerator.sync_gradients)
        return handled
