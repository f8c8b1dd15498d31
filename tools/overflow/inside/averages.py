"""Averages of the weights: which methods move them, in the packages that people use."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import BuiltinFunctionType, FunctionType, GeneratorType
from typing import TYPE_CHECKING, Any

from .lookup import resolve

if TYPE_CHECKING:
    from .observer import Observer

_MARK = "_overflow_observed"
_NEVER = ("torch", "accelerate", "builtins", "transformers")  # `ema.step` of an optimizer or a module is no average's

KNOWN = {
    "diffusers.training_utils": ["EMAModel.step"],
    "torch.optim.swa_utils": ["AveragedModel.update_parameters"],
    "ema_pytorch.ema_pytorch": ["EMA.update"],
    "ema_pytorch.post_hoc_ema": ["PostHocEMA.update"],
    "timm.utils.model_ema": ["ModelEma.update", "ModelEmaV2.update", "ModelEmaV3.update"],
    "torch_ema.ema": ["ExponentialMovingAverage.update"],
    "accelerate_ext.ema.average": ["Average.update", "EMA.update"],
    "accelerate_ext.ema.posthoc": ["PostHocEMA.update"],
}


def patch(observer: Observer, module: Any, methods: list[str]) -> None:
    """Observe those of the methods that this version of the package has."""
    for target in methods:
        owner, _, method = target.partition(".")
        if method in vars(vars(module).get(owner, object)):
            _observe(observer, vars(module)[owner], method)


def patch_named(observer: Observer, module: Any, target: str) -> None:
    """Observe `Class.method`, inherited or not. Raises: AttributeError if the module has no such method."""
    *path, method = target.split(".")
    owner = module
    for name in path:
        owner = getattr(owner, name)
    _observe(observer, next((cls for cls in getattr(owner, "__mro__", ()) if method in vars(cls)), owner), method)


def find(observer: Observer, path: str) -> bool:
    """Observe what a call in the script names, `ema.step` or `update_ema`, once it is there. True if it was found."""
    owner, _, method = path.rpartition(".")
    found, frame = resolve(owner or path)
    if found is None:
        return False
    if owner:
        _observe_method(observer, type(found), method)
    elif isinstance(found, FunctionType) and frame is not None:
        _observe_function(observer, frame.f_globals, path, found)
    elif not isinstance(found, (type, BuiltinFunctionType)):
        _observe_method(observer, type(found), "__call__")
    return True


def _observe_method(observer: Observer, cls: Any, method: str) -> None:
    for owner in cls.__mro__:
        if method in vars(owner):
            if owner.__module__.partition(".")[0] not in _NEVER:
                _observe(observer, owner, method)
            return


def _observe_function(observer: Observer, holder: dict[str, Any], name: str, function: FunctionType) -> None:
    """A function gets the average as an argument; its state is that of all its arguments."""
    if holder.get(name) is not function or hasattr(function, _MARK):
        return

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        call = functools.partial(function, *args, **kwargs)
        with observer.within("average") as outermost:
            if not outermost or not observer.is_training:
                return call()
            owner = next((value for value in args if hasattr(value, "__dict__")), function)
            return observer.average(owner, name, call, set(), held=[args, kwargs])

    setattr(wrapper, _MARK, True)
    holder[name] = wrapper


def _observe(observer: Observer, owner: Any, method: str) -> None:
    original = vars(owner).get(method)
    if original is None:
        raise AttributeError(f"{owner.__name__} has no method {method}")
    if hasattr(original, _MARK) or not isinstance(original, FunctionType):
        return

    @functools.wraps(original)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        args, kwargs, parameters = _with_parameters(self, args, kwargs)
        call = functools.partial(original, self, *args, **kwargs)
        with observer.within("average") as outermost:
            if not outermost or not observer.is_training:
                return call()
            return observer.average(self, type(self).__name__, call, parameters)

    setattr(wrapper, _MARK, True)
    setattr(owner, method, wrapper)


def _with_parameters(
    owner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any], set[int]]:
    """The same arguments, and the ids of the parameters among them or in the model that the average follows.

    A generator can be read once only, so the average gets a fresh one over the same parameters.
    """
    found: set[int] = set()

    def read(value: Any) -> Any:
        if isinstance(value, GeneratorType):
            value = list(value)
            found.update(map(id, value))
            return iter(value)
        if isinstance(value, (list, tuple)):
            found.update(map(id, value))
        elif callable(getattr(value, "parameters", None)):
            found.update(map(id, value.parameters()))
        return value

    args = tuple(read(value) for value in args)
    kwargs = {name: read(value) for name, value in kwargs.items()}
    if not found:
        followed: Callable[[], Any] | None = getattr(getattr(owner, "model", None), "parameters", None)
        if callable(followed):
            found.update(map(id, followed()))
    return args, kwargs, found
