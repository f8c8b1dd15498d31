"""Runs inside the script's own process: tells what the training loop does, and makes chosen gradients overflow.

Standard library only, and nothing of torch or accelerate is imported here: the script imports them when it wants to,
and the hooks of `imports` attach the observers at that moment. Loaded under a name of its own by the
`sitecustomize` that `launch` writes.
"""

from __future__ import annotations

import atexit
import importlib.machinery
import importlib.util
import os
import sys
from typing import Any

from . import imports
from .observer import Observer
from .patches import actions


def install(config: dict[str, Any]) -> None:
    """Attach the observers to everything the script will import. Called once, before the script's first line."""
    observer = Observer(config)
    imports.watch(actions(observer))
    atexit.register(observer.finish)


def hand_over(folder: str) -> None:
    """Run the `sitecustomize` that this one hides, if the interpreter has its own."""
    elsewhere = [path for path in sys.path if os.path.abspath(path or os.curdir) != os.path.abspath(folder)]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", elsewhere)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)
