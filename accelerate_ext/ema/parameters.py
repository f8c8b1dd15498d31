"""Which tensors of a model are averaged, which are copied, and whether the model is still the same."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from . import distributed

Model = nn.Module | Mapping[str, torch.Tensor] | Iterable[torch.Tensor] | Iterable[tuple[str, torch.Tensor]]
WRAPPERS = ("_orig_mod.", "_checkpoint_wrapped_module.", "_fsdp_wrapped_module.")


class ParameterSetError(ValueError):
    """The parameters are not those that the averages were made for. The text names them and says what to do."""


class ParameterSet:
    """The parameters of a model or of an iterable, sorted into averaged, copied and tied.

    `averaged`: trainable floating-point parameters, each once, under the first of its names. `tied`: other name ->
    first name. `given`: all parameters, in the order in which they were given. Of a module, names are those of its
    `state_dict()`, without what DistributedDataParallel and torch.compile put before them; parameters that come
    without a name are called by their position.
    """

    def __init__(self, model: Model, include_frozen: bool = False):
        self.module = unwrap(model) if isinstance(model, nn.Module) else None
        self.include_frozen = include_frozen
        named = [*_named(model if self.module is None else self.module)]
        _check_usable(dict(named))
        self._sort(named)
        if not self.averaged:
            raise ParameterSetError("there is no trainable floating-point parameter to average; got " + _kind(model))
        self._watch()

    def _sort(self, named: list[tuple[str, torch.Tensor]]) -> None:
        self.given: dict[str, torch.Tensor] = {}
        self.averaged: dict[str, torch.Tensor] = {}
        self.tied: dict[str, str] = {}
        first: dict[int, str] = {}
        for name, parameter in named:
            if id(parameter) in first:
                self.tied[name] = first[id(parameter)]
                continue
            first[id(parameter)] = name
            self.given[name] = parameter
            if self._is_averaged(parameter):
                self.averaged[name] = parameter
        self.shapes = {name: tuple(parameter.shape) for name, parameter in self.averaged.items()}

    def _is_averaged(self, parameter: torch.Tensor) -> bool:
        is_number = parameter.is_floating_point() or parameter.is_complex()
        return is_number and (parameter.requires_grad or self.include_frozen)

    @functools.cached_property
    def digest(self) -> str:
        """Hash of names and shapes of the averaged parameters, whole tensors: the same on any number of ranks."""
        text = json.dumps([[name, list(shape)] for name, shape in sorted(self.shapes.items())])
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def is_sharded(self) -> bool:
        """Whether each process holds only a part of some parameter."""
        return any(distributed.is_sharded(parameter) for parameter in self.given.values())

    def copied(self) -> dict[str, torch.Tensor]:
        """What belongs to the complete model and is not averaged, as it stands now: frozen parameters and buffers."""
        frozen = {name: tensor for name, tensor in self.given.items() if name not in self.averaged}
        return frozen | (dict(buffers(self.module)) if self.module is not None else {})

    def _watch(self) -> None:
        modules = [] if self.module is None else list(self.module.modules())
        self._children = [(m._modules, key, child) for m in modules for key, child in m._modules.items()]
        self._slots = [(m._parameters, key, held) for m in modules for key, held in m._parameters.items()]
        self._sizes = [(m._modules, len(m._modules), m._parameters, len(m._parameters)) for m in modules]
        self._frozen = [tensor for name, tensor in self.given.items() if name not in self.averaged]

    def is_unchanged(self) -> bool:
        """Whether modules, parameter objects and what is trainable are as last seen. Costs some lookups, no pass."""
        return (
            all(held.get(key) is child for held, key, child in self._children)
            and all(held.get(key) is parameter for held, key, parameter in self._slots)
            and all(len(a) == num_a and len(b) == num_b for a, num_a, b, num_b in self._sizes)
            and not any(self._is_averaged(parameter) for parameter in self._frozen)
        )

    def look_again(self) -> None:
        """Take up parameter objects that were replaced by others of the same names and shapes.

        Raises: ParameterSetError naming all parameters that were added, removed, made trainable or changed in shape.
        """
        before = self.shapes
        if self.module is not None:
            self._sort([*_named(self.module)])
        else:
            self._sort([*self.given.items()])
        now, self.shapes = self.shapes, before
        problems = [f"{name}: added or made trainable" for name in now.keys() - before.keys()]
        problems += [f"{name}: removed" for name in before.keys() - self.given.keys()]
        problems += reshaped(before, {name: tuple(self.given[name].shape) for name in before if name in self.given})
        if problems:
            raise ParameterSetError(changed(problems))
        self.averaged = {name: self.given[name] for name in before}
        self._watch()

    def targets(self, model: Model | None) -> dict[str, torch.Tensor]:
        """Tensors of `model` under the names of this set: the module's own when None is given.

        Raises: ParameterSetError naming every averaged parameter that `model` lacks or holds in another shape.
        """
        if model is None:
            return self.given
        other = list(_named(unwrap(model) if isinstance(model, nn.Module) else model))
        if not isinstance(model, (nn.Module, Mapping)) and other and other[0][0] == "0":
            unique = {id(tensor): tensor for _, tensor in other}
            names = list(self.given) if len(unique) == len(self.given) else list(self.averaged)
            other = list(zip(names, unique.values(), strict=True)) if len(unique) == len(names) else []
        found = {self.tied.get(name, name): tensor for name, tensor in other}
        wrong = [f"{name}: missing" for name in self.averaged if name not in found]
        wrong += [
            f"{name}: must have shape {list(shape)}, has {list(found[name].shape)}"
            for name, shape in self.shapes.items()
            if name in found and tuple(found[name].shape) != shape
        ]
        if wrong:
            raise ParameterSetError("these parameters do not fit the averages:\n  " + "\n  ".join(wrong))
        return found


def reshaped(before: Mapping[str, tuple[int, ...]], now: Mapping[str, tuple[int, ...]]) -> list[str]:
    """What to say of parameters that have another shape than they had."""
    return [
        f"{name}: {list(before[name])} became {list(shape)}" for name, shape in now.items() if before[name] != shape
    ]


def changed(problems: Iterable[str]) -> str:
    """The text of the error about parameters that are not what they were."""
    return (
        "the averages were made for other parameters; make a new average after the model has changed (or, for "
        "parameters that are unfrozen later, pass include_frozen=True from the start):\n  "
        + "\n  ".join(sorted(problems))
    )


def unwrap(module: nn.Module) -> nn.Module:
    """The user's own module inside DistributedDataParallel, DataParallel and torch.compile."""
    while True:
        if isinstance(module, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
            module = module.module
        elif isinstance(inner := getattr(module, "_orig_mod", None), nn.Module):
            module = inner
        else:
            return module


def buffers(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """The buffers that `state_dict()` holds, each once."""
    seen: set[int] = set()
    for prefix, owner in module.named_modules():
        for key, buffer in owner._buffers.items():
            if buffer is not None and key not in owner._non_persistent_buffers_set and id(buffer) not in seen:
                seen.add(id(buffer))
                yield _clean(f"{prefix}.{key}" if prefix else key), buffer


def _named(model: Model) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(model, nn.Module):
        yield from ((_clean(name), p) for name, p in model.named_parameters(remove_duplicate=False))
    elif isinstance(model, Mapping):
        yield from model.items()
    elif isinstance(model, (str, bytes)) or not isinstance(model, Iterable):
        raise TypeError(f"averages need a module or its parameters, got {type(model).__name__}")
    else:
        for index, item in enumerate(model):
            yield item if isinstance(item, tuple) else (str(index), item)


def _clean(name: str) -> str:
    for wrapper in WRAPPERS:
        name = name.replace(wrapper, "")
    return name


def _check_usable(given: Mapping[str, Any]) -> None:
    wrong = [f"{name}: {_kind(item)}" for name, item in given.items() if not isinstance(item, torch.Tensor)]
    if wrong:
        raise TypeError("averages need a module or its parameters, got\n  " + "\n  ".join(wrong))
    meta = [name for name, parameter in given.items() if parameter.is_meta]
    if meta:
        raise ParameterSetError(
            f"parameters on the meta device hold no values yet: {', '.join(meta)}; load them first"
        )
    parted = [name for name, parameter in given.items() if hasattr(parameter, "ds_id")]
    if parted:
        raise ParameterSetError(
            f"DeepSpeed ZeRO-3 has taken these parameters apart: {', '.join(parted)}; use ZeRO 1 or 2, or FSDP2"
        )


def _kind(item: object) -> str:
    return f"{type(item).__module__}.{type(item).__qualname__}"
