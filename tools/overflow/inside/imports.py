"""Calls back when a module has been imported, whoever imports it and whenever."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

Action = Callable[[ModuleType], None]


class _Finder(importlib.abc.MetaPathFinder):
    """Finds nothing itself: lets the others find a watched module and runs the action behind the module's own code."""

    def __init__(self, actions: Mapping[str, Action]) -> None:
        self.actions = dict(actions)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        action = self.actions.get(name)
        if action is None:
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                _run_behind(spec.loader, action)
                return spec
        return None


def _run_behind(loader: Any, action: Action) -> None:
    """Only this one loader object is changed: it stays of its class, and so do source, code and resources."""
    execute = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        execute(module)
        action(module)

    loader.exec_module = exec_module


def watch(actions: Mapping[str, Action]) -> None:
    """Run each action when its module has been imported; at once for a module that is there already."""
    sys.meta_path.insert(0, _Finder(actions))
    for name, action in actions.items():
        if name in sys.modules:
            action(sys.modules[name])
