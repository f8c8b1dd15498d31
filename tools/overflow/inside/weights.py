"""Compares tensors bit by bit, before and after. Nothing here is believed from a flag."""

from __future__ import annotations

import sys
from typing import Any

_DEPTH = 5


def _local(tensor: Any) -> Any:
    tensor = tensor.detach()
    return getattr(tensor, "_local_tensor", tensor)


def copy_of(tensor: Any) -> Any:
    """A copy on the same device, or in host memory where the device has no room for one."""
    torch = sys.modules["torch"]
    try:
        return _local(tensor).clone()
    except torch.cuda.OutOfMemoryError:
        return _local(tensor).cpu().clone()


def are_equal(before: Any, now: Any) -> bool:
    """Equal values; NaN equals NaN."""
    now = _local(now)
    if before.shape != now.shape or before.dtype != now.dtype:
        return False
    before = before.to(now.device)
    if bool((before == now).all()):
        return True
    return bool(((before == now) | ((before != before) & (now != now))).all())


class Weights:
    """The parameters of an optimizer at one moment."""

    def __init__(self, parameters: list[Any]) -> None:
        self.parameters = parameters
        self.before = [copy_of(parameter) for parameter in parameters]

    def changed(self) -> bool:
        """Whether any parameter differs now from what it was then."""
        return not all(are_equal(before, now) for before, now in zip(self.before, self.parameters, strict=True))


def all_finite(tensors: list[Any]) -> bool:
    return all(bool(_local(tensor).isfinite().all()) for tensor in tensors)


class State:
    """All tensors and plain numbers that an object holds, to tell later whether any of them moved."""

    def __init__(self, owner: Any) -> None:
        self.owner = owner
        self.before = _content(owner)

    def changed(self) -> bool:
        now = _content(self.owner, copied=False)
        if now.keys() != self.before.keys():
            return True
        return any(not _same(self.before[path], now[path]) for path in now)


def _same(before: Any, now: Any) -> bool:
    torch = sys.modules["torch"]
    if torch.is_tensor(before) and torch.is_tensor(now):
        return are_equal(before, now)
    return type(before) is type(now) and (before == now or before != before)


def _content(owner: Any, copied: bool = True) -> dict[str, Any]:
    """Path -> tensor or number, found in attributes, sequences, mappings and objects within `owner`."""
    torch = sys.modules["torch"]
    found: dict[str, Any] = {}
    seen: set[int] = set()

    def visit(value: Any, path: str, depth: int) -> None:
        if torch.is_tensor(value):
            found[path] = copy_of(value) if copied else value
            return
        if value is None or isinstance(value, (bool, int, float)):
            found[path] = value
            return
        if depth > _DEPTH or id(value) in seen or isinstance(value, (str, bytes, type)):
            return
        seen.add(id(value))
        for name, item in _parts(value):
            visit(item, f"{path}/{name}", depth + 1)

    visit(owner, "", 0)
    return found


def _parts(value: Any) -> list[tuple[Any, Any]]:
    if isinstance(value, dict):
        return list(value.items())
    if isinstance(value, (list, tuple)):
        return list(enumerate(value))
    if isinstance(value, sys.modules["torch"].nn.Module):
        tensors = [*value.named_parameters(), *value.named_buffers()]
        return [*tensors, *((name, item) for name, item in vars(value).items() if not name.startswith("_"))]
    module = type(value).__module__
    if module.startswith(("torch.", "accelerate.", "builtins", "logging", "threading")):
        return []
    slots = [name for cls in type(value).__mro__ for name in getattr(cls, "__slots__", ()) if hasattr(value, name)]
    return [*getattr(value, "__dict__", {}).items(), *((name, getattr(value, name)) for name in slots)]
