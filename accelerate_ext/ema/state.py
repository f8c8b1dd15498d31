"""Whether a saved state of averages is one that these averages can continue from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from . import distributed

State = Mapping[str, torch.Tensor]


def check_state(
    state: Mapping[str, Any], settings: Mapping[str, Any], mine: Sequence[State], parameters: State
) -> list[dict[str, torch.Tensor]]:
    """The averages in `state` as this process's parts, in the shapes and dtypes of `mine`.

    Raises: ValueError saying everything that differs.
    """
    missing = [key for key in (*settings, "clock", "averages") if key not in state]
    if missing:
        raise ValueError(f"this is not the state of a {settings['kind']}: it lacks {', '.join(missing)}")
    problems = [f"{key}: {own!r} here, {state[key]!r} there" for key, own in settings.items() if own != state[key]]
    if problems:
        raise ValueError(_refusal(problems))
    parts = []
    for own, theirs in zip(mine, state["averages"], strict=True):
        part = {name: _part(theirs[name], parameters[name]) for name in own if name in theirs}
        problems += [f"{name}: not in the state" for name in own if name not in theirs]
        problems += [f"{name}: not averaged here" for name in theirs if name not in own]
        problems += [
            f"{name}: {_describe(own[name])} here, {_describe(tensor)} there"
            for name, tensor in part.items()
            if (tensor.shape, tensor.dtype) != (own[name].shape, own[name].dtype)
        ]
        parts.append(part)
    if problems:
        raise ValueError(_refusal(problems))
    return parts


def _refusal(problems: Sequence[str]) -> str:
    lines = "\n  ".join(dict.fromkeys(problems))
    return f"the state is of other averages; nothing was loaded. Make these averages with its settings:\n  {lines}"


def _part(tensor: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    if distributed.is_sharded(tensor):
        return distributed.local(tensor)
    if distributed.is_sharded(parameter) and tensor.shape == parameter.shape:
        return distributed.part_of(tensor, parameter)
    return tensor


def _describe(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
