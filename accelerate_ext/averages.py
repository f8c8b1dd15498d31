"""Averages of the weights in a checkpoint: tensors in safetensors, all else as JSON in its header, nothing pickled."""

from __future__ import annotations

import functools
import json
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch

from .errors import CheckpointError
from .staging import write_whole

_FORMAT = "accelerate_ext.average/1"


class Average(Protocol):
    """What can be kept in a checkpoint.

    `state_dict()` may hold tensors, numbers, strings, None, and lists and dicts of those. Every process calls it, so
    it may gather shards; the main process writes what it got, and every process is given that to load.
    """

    def state_dict(self) -> Mapping[str, Any]: ...

    def load_state_dict(self, state: Any) -> Any: ...


class Averages:
    """The averages of one Accelerator, by name."""

    def __init__(self) -> None:
        self._by_name: dict[str, Average] = {}

    def add(self, name: str, average: Average) -> None:
        """Take an average into all further checkpoints.

        Raises: ValueError if the name cannot be part of a file name or is taken; TypeError if the object has no state.
        """
        if not (hasattr(average, "state_dict") and hasattr(average, "load_state_dict")):
            raise TypeError(f"an average must have `state_dict` and `load_state_dict`, got {type(average).__name__}")
        is_module = isinstance(average, torch.nn.Module)
        if is_module and not any(hasattr(average, name) for name in ("update", "update_parameters", "step")):
            raise TypeError(
                f"an average must have `update`; {type(average).__name__} is a module without one: give the average "
                "of the model, not the model, which `prepare` puts into checkpoints"
            )
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", name):
            raise ValueError(f"`name` must be made of letters, digits, '_', '.' and '-', got {name!r}")
        if self._by_name.get(name, average) is not average:
            raise ValueError(f"`name` must be new, but {name!r} is registered already; pick another one")
        self._by_name[name] = average

    def names(self) -> list[str]:
        return list(self._by_name)

    def states(self) -> dict[str, Mapping[str, Any]]:
        """The state of each average. Every process must call it."""
        return {name: average.state_dict() for name, average in self._by_name.items()}

    def check(self, folder: Path) -> None:
        """Make sure, by their headers, that the averages in a checkpoint can be loaded.

        Raises: CheckpointError naming a file that cannot.
        """
        for path in (_file_of(folder, name) for name in self._by_name):
            if path.is_file():
                with _opened(path):
                    pass

    def load(self, folder: Path) -> None:
        """Load each average from a checkpoint. Warns of one without a file there, and of files of no average here."""
        for name, average in self._by_name.items():
            path = _file_of(folder, name)
            if path.is_file():
                average.load_state_dict(read_state(path))
            else:
                warnings.warn(f"{folder} has no {path.name}: the average {name!r} stays as it is", stacklevel=4)
        files = sorted(folder.glob(_file_of(Path(), "*").name))
        others = [repr(name) for path in files if (name := path.stem.removeprefix("average_")) not in self._by_name]
        if others:
            kept = f"the average {others[0]}" if len(others) == 1 else f"the averages {', '.join(others)}"
            warnings.warn(
                f"{folder} holds {kept}, which nobody has registered: what shall go on from there must be registered "
                "before the load (`register_average`, or `AppliedStepCallback(ema=...)`)",
                stacklevel=4,
            )


@contextmanager
def _opened(path: Path) -> Iterator[tuple[Any, Any]]:
    """The open file and what stands in its header. Raises: CheckpointError, also for what fails inside."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != _FORMAT:
                raise ValueError(f"`format` must be {_FORMAT!r}, got {metadata.get('format')!r}")
            yield file, json.loads(metadata["state"])
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} must hold an average that `save_state` wrote: {error}") from error


def write_states(folder: Path, states: Mapping[str, Mapping[str, Any]]) -> None:
    """Write a file for each average, whole or not at all."""
    from safetensors.torch import save_file

    for name, state in states.items():
        tensors: dict[str, torch.Tensor] = {}
        structure = _take_out(state, tensors)
        metadata = {"format": _FORMAT, "state": json.dumps(structure)}
        write_whole(_file_of(folder, name), functools.partial(save_file, tensors, metadata=metadata))


def read_state(path: Path) -> Any:
    """The state that was written; tensors are on the CPU.

    Raises: CheckpointError if the file is no such state.
    """
    with _opened(path) as (file, structure):
        return _put_back(structure, {name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118


def _file_of(folder: Path, name: str) -> Path:
    return folder / f"average_{name}.safetensors"


def _take_out(value: Any, tensors: dict[str, torch.Tensor]) -> Any:
    """The value with every tensor moved to `tensors` and a marker in its place; dicts become lists of pairs."""
    if isinstance(value, torch.Tensor):
        name = str(len(tensors))
        tensors[name] = value.detach().to("cpu", copy=True).contiguous()
        return {"tensor": name}
    if isinstance(value, Mapping):
        if strange := [key for key in value if not isinstance(key, (str, int, float))]:
            raise TypeError(f"the state of an average must have words or numbers as keys, got {strange[0]!r}")
        return {"dict": [[key, _take_out(item, tensors)] for key, item in value.items()]}
    if isinstance(value, (list, tuple)):
        kind = "tuple" if isinstance(value, tuple) else "list"
        return {kind: [_take_out(item, tensors) for item in value]}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"the state of an average must hold tensors, numbers, strings, lists and dicts, got {value!r}")


def _put_back(value: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "dict":
        return {key: _put_back(item, tensors) for key, item in content}
    items = [_put_back(item, tensors) for item in content]
    return tuple(items) if kind == "tuple" else items
