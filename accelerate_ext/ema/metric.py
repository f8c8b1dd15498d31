"""A metric of one file of weights: a function, or a command whose last line of output is the number."""

from __future__ import annotations

import functools
import math
import re
import shlex
import subprocess
from collections.abc import Callable, Sequence
from numbers import Real
from pathlib import Path
from typing import Any

import torch

_KNOWN = {"path", "sigma_rel"}
_PLACEHOLDER = re.compile(r"(?<![${])\{(\w+)\}")
_CODE = re.compile(r"[\s()'\"]")  # braces in an argument that is a program have another meaning

Metric = Callable[[Path], float] | str | Sequence[str]


class MetricError(RuntimeError):
    """The metric could not be measured. What was measured before is kept."""


class Measure:
    """A metric, checked before anything is built for it.

    Raises: MetricError for a command that does not say where the file goes; TypeError for what is no metric.
    """

    def __init__(self, metric: Metric):
        self._function = metric if callable(metric) else None
        self._words = [] if callable(metric) else _words(metric)

    @property
    def name(self) -> str:
        """What the metric is called in results: the same in every process that is given the same metric."""
        return shlex.join(self._words) if self._function is None else _name(self._function)

    def __call__(self, path: Path, sigma_rel: float) -> float:
        """The metric of one file; nan where it is not finite. Raises: MetricError if it cannot be measured."""
        value = self._run(path, sigma_rel) if self._function is None else _call(self._function, path)
        return value if math.isfinite(value) else math.nan

    def _run(self, path: Path, sigma_rel: float) -> float:
        command = [word.replace("{path}", str(path)).replace("{sigma_rel}", f"{sigma_rel:g}") for word in self._words]
        try:
            ran = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError as error:
            raise MetricError(f"cannot run {shlex.join(command)}: {error}") from error
        if ran.returncode:
            tail = "\n".join((ran.stderr.strip() or ran.stdout.strip()).splitlines()[-5:]) or "(it printed nothing)"
            raise MetricError(f"{shlex.join(command)} ended with exit code {ran.returncode}:\n{tail}")
        lines = ran.stdout.strip().splitlines()
        try:
            return float(lines[-1])
        except (IndexError, ValueError) as error:
            found = repr(lines[-1]) if lines else "nothing"
            raise MetricError(f"the last line of {shlex.join(command)} must be a number, it is {found}") from error


def _words(command: object) -> list[str]:
    if isinstance(command, str):
        try:
            words = shlex.split(command)
        except ValueError as error:
            raise MetricError(f"the command cannot be taken apart into words: {command} ({error})") from error
    elif isinstance(command, Sequence):
        words = [str(word) for word in command]
    else:
        raise TypeError(f"`metric` must be a function or a command, got {type(command).__name__}")
    if not any("{path}" in word for word in words):
        raise MetricError(f"the command must say where the file goes, with {{path}}; got: {shlex.join(words)}")
    unknown = {name for word in words if not _CODE.search(word) for name in _PLACEHOLDER.findall(word)} - _KNOWN
    if unknown:
        listed = ", ".join(f"{{{name}}}" for name in sorted(unknown))
        raise MetricError(f"{{path}} and {{sigma_rel}} are filled into a command, {listed} is not known")
    return words


def _call(function: Callable[[Path], float], path: Path) -> float:
    try:
        value: Any = function(path)
    except MetricError:
        raise
    except Exception as error:
        raise MetricError(f"the metric of {path}: {type(error).__name__}: {error}") from error
    try:
        if not isinstance(value, str):
            return float(value.detach() if isinstance(value, torch.Tensor) else value)
    except (TypeError, ValueError, RuntimeError):  # a tensor of several elements is the last
        pass
    raise MetricError(f"the metric must return a number, it returned {value!r}")


def _name(function: Any) -> str:
    if isinstance(function, functools.partial):
        given = [*map(_argument, function.args)]
        given += [f"{name}={_argument(value)}" for name, value in sorted(function.keywords.items())]
        return f"{_name(function.func)}({', '.join(given)})"
    return getattr(function, "__qualname__", type(function).__qualname__)


def _argument(value: object) -> str:
    """Plain values as they read; of anything else only the type, since its text may be another in each process."""
    return repr(value) if value is None or isinstance(value, (str, Real, Path)) else type(value).__qualname__
