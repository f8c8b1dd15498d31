"""The packages whose averages `benchmarks.ema` compares, each with the same work: a step for one or two averages."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from accelerate_ext.ema import EMA, PostHocEMA

WIDTHS = (0.05, 0.10)
DECAYS = (0.999, 0.9999)
Step = Callable[[], Any]


def optional(name: str, file: str | None = None) -> ModuleType | None:
    """A package if it is installed, or one file of it."""
    spec = importlib.util.find_spec(name)
    if spec is None:
        return None
    if file is None:
        return importlib.import_module(name)
    origin = Path(spec.origin or "").parent / file
    alone = importlib.util.spec_from_file_location(f"{name}_{origin.stem}", origin)
    if alone is None or alone.loader is None:
        return None
    module = importlib.util.module_from_spec(alone)
    alone.loader.exec_module(module)
    return module


def ours(model: nn.Module, num: int) -> Iterator[tuple[str, Step]]:
    ema, counter = PostHocEMA(model, WIDTHS[:num]), iter(range(1, 10**9))
    yield "accelerate_ext PostHocEMA", lambda: ema.update(next(counter))
    if num == 1:
        constant, other = EMA(model, decay=DECAYS[0]), iter(range(1, 10**9))
        yield "accelerate_ext EMA", lambda: constant.update(next(other))


def floor(model: nn.Module, num: int) -> Iterator[tuple[str, Step]]:
    size = sum(parameter.numel() for parameter in model.parameters())
    source, averages = torch.randn(size), [torch.randn(size) for _ in range(num)]

    def step() -> None:
        for average in averages:
            average.lerp_(source, 0.01)

    yield "floor", step


def foreach(model: nn.Module, num: int) -> Iterator[tuple[str, Step]]:
    parameters = [parameter.detach() for parameter in model.parameters()]
    averages = [[parameter.clone() for parameter in parameters] for _ in range(num)]

    def step() -> None:
        for average in averages:
            torch._foreach_lerp_(average, parameters, 0.01)

    yield "torch._foreach_lerp_", step


def averaged_model(model: nn.Module, num: int) -> Iterator[tuple[str, Step]]:
    held = [AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay)) for decay in DECAYS[:num]]
    yield "torch AveragedModel", lambda: [average.update_parameters(model) for average in held]


def timm(model: nn.Module, num: int) -> Iterator[tuple[str, Step]]:
    if package := optional("timm", "utils/model_ema.py"):
        held = [package.ModelEmaV3(model, decay=decay) for decay in DECAYS[:num]]
        yield "timm ModelEmaV3", lambda: [average.update(model) for average in held]


def torch_ema(model: nn.Module, num: int) -> Iterator[tuple[str, Step]]:
    if package := optional("torch_ema"):
        held = [package.ExponentialMovingAverage(list(model.parameters()), decay) for decay in DECAYS[:num]]
        yield "torch-ema", lambda: [average.update() for average in held]


def diffusers(model: nn.Module, num: int) -> Iterator[tuple[str, Step]]:
    if optional("diffusers"):
        training = importlib.import_module("diffusers.training_utils")
        for is_foreach in (False, True):
            held = [training.EMAModel(model.parameters(), decay=decay, foreach=is_foreach) for decay in DECAYS[:num]]
            name = "diffusers EMAModel" + (", foreach" if is_foreach else "")
            yield name, lambda held=held: [average.step(model.parameters()) for average in held]


def ema_pytorch(model: nn.Module, num: int) -> Iterator[tuple[str, Step]]:
    if package := optional("ema_pytorch"):
        held = [package.KarrasEMA(model, sigma_rel=width, update_every=1) for width in WIDTHS[:num]]
        yield "ema-pytorch", lambda: [average.update() for average in held]


def pytorch_posthoc_ema(model: nn.Module, num: int) -> Iterator[tuple[str, Step]]:
    if optional("posthoc_ema"):
        karras = importlib.import_module("posthoc_ema.karras_ema")
        held = [karras.KarrasEMA(model, sigma_rel=width, update_every=1) for width in WIDTHS[:num]]
        yield "pytorch-posthoc-ema", lambda: [average.update() for average in held]


def nitrous_ema(model: nn.Module, num: int) -> Iterator[tuple[str, Step]]:
    if optional("nitrous_ema"):
        module = importlib.import_module("nitrous_ema.ema")
        held = [module.KarrasEMA(model, sigma_rel=width, update_every=1) for width in WIDTHS[:num]]
        yield "nitrous-ema", lambda: [average.update() for average in held]


UPDATES = (
    floor,
    ours,
    foreach,
    averaged_model,
    timm,
    torch_ema,
    diffusers,
    ema_pytorch,
    pytorch_posthoc_ema,
    nitrous_ema,
)
