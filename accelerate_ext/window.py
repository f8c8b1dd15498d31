"""The block of one micro-batch."""

from __future__ import annotations

from contextlib import AbstractContextManager
from types import TracebackType

import torch
from accelerate.state import GradientState

from .attempts import Attempts
from .update import Update


class Window(AbstractContextManager["Update | None"]):
    """Accelerate's `accumulate()`, and what became of the update. A class, since it is entered for every batch."""

    __slots__ = ("_attempts", "_inner", "_models", "_state", "_yields_update")

    def __init__(
        self,
        attempts: Attempts,
        state: GradientState,
        inner: AbstractContextManager[None],
        models: tuple[torch.nn.Module, ...],
        yields_update: bool,
    ) -> None:
        self._attempts = attempts
        self._state = state
        self._inner = inner
        self._models = models
        self._yields_update = yields_update

    def __enter__(self) -> Update | None:
        update = self._attempts.open_window(self._models)
        try:
            self._inner.__enter__()
        except BaseException:
            self._attempts.abandon_window()
            raise
        return update if self._yields_update else None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        try:
            handled = self._inner.__exit__(kind, error, trace)
        except BaseException:
            self._attempts.abandon_window()
            raise
        if error is not None:
            self._attempts.abandon_window()
        else:
            self._attempts.close_window(self._state.sync_gradients)
        return handled
