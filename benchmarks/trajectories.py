"""Training runs whose weights are known at every step, so that each average of them is known too."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from accelerate_ext.ema import profile

TARGETS = (0.02, 0.05, 0.075, 0.10, 0.15, 0.20, 0.25)
"""Widths of the averages that are built of each run."""
MOST_ELEMENTS = 2048


@dataclass
class Trajectory:
    """Weights at every step. Shapes: values (T, elements), float32; row 0 is step 1."""

    name: str
    values: np.ndarray

    def average(self, t: int, width: float) -> np.ndarray:
        weights = profile.step_weights(t, profile.gamma_from_sigma_rel(width))
        return weights @ self.values[:t]

    def error(self, got: np.ndarray, width: float) -> float:
        wanted = self.average(len(self.values), width)
        return float(np.linalg.norm(got - wanted) / np.linalg.norm(self.values[-1] - wanted))


def random_walk(steps: int) -> Trajectory:
    generator = np.random.default_rng(0)
    start = generator.standard_normal(MOST_ELEMENTS) * 0.1
    walk = start + generator.standard_normal((steps, MOST_ELEMENTS)).cumsum(axis=0) * 1e-3
    return Trajectory("random walk", walk.astype(np.float32))


def noisy_descent(steps: int) -> Trajectory:
    """Descent on a quadratic with curvatures over four decades, gradient noise, and a falling rate."""
    generator = np.random.default_rng(1)
    curvature = np.geomspace(1e-3, 10, MOST_ELEMENTS)
    x, values = generator.standard_normal(MOST_ELEMENTS), np.empty((steps, MOST_ELEMENTS), np.float32)
    for t in range(steps):
        rate = 0.05 / math.sqrt(1 + t / 100)
        x = x - rate * (curvature * x + generator.standard_normal(MOST_ELEMENTS) * np.sqrt(curvature))
        values[t] = x
    return Trajectory("SGD-like", values)


def record(name: str, model: nn.Module, updates: Iterator[None], steps: int) -> Trajectory:
    """Follows a run; of a larger model, a fixed random part of the elements."""
    size = sum(p.numel() for p in model.parameters())
    picked = torch.randperm(size, generator=torch.Generator().manual_seed(0))[:MOST_ELEMENTS].sort().values
    values = np.empty((steps, len(picked)), np.float32)
    for t in range(steps):
        next(updates)
        values[t] = torch.cat([p.detach().reshape(-1) for p in model.parameters()])[picked].numpy()
    return Trajectory(name, values)


def denoiser(steps: int) -> Trajectory:
    """A small diffusion model of points on two rings; Adam, constant rate."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)

    def updates() -> Iterator[None]:
        while True:
            angle = torch.rand(128, 1) * 2 * math.pi
            radius = torch.where(torch.rand(128, 1) < 0.5, 1.0, 2.0)
            noise, level = torch.randn(128, 2), torch.rand(128, 1)
            seen = torch.cat([radius * angle.cos(), radius * angle.sin()], 1) * (1 - level) + noise * level
            loss = (model(torch.cat([seen, level], 1)) - noise).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            yield

    return record("denoiser, Adam, constant rate", model, updates(), steps)


def language_model(steps: int) -> Trajectory:
    """A small transformer on text of a random grammar; AdamW, warm-up and a rate that falls as 1 / sqrt(t)."""
    torch.manual_seed(1)
    table = torch.softmax(torch.randn(24, 24, 24) * 2, -1)
    layer = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, batch_first=True)
    embed, head = nn.Embedding(24, 32), nn.Linear(32, 24)
    model = nn.ModuleList([embed, layer, head])
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    mask = nn.Transformer.generate_square_subsequent_mask(16)

    def updates() -> Iterator[None]:
        for t in itertools.count(1):
            for group in optimizer.param_groups:
                group["lr"] = 3e-3 * min(t / 100, math.sqrt(1000 / max(t, 1000)))
            text = [torch.randint(24, (32,)), torch.randint(24, (32,))]
            for _ in range(15):
                text.append(torch.multinomial(table[text[-2], text[-1]], 1).squeeze(1))
            tokens = torch.stack(text, 1)
            logits = head(layer(embed(tokens[:, :-1]), src_mask=mask))
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            yield

    return record("transformer, AdamW, falling rate", model, updates(), steps)


TRAJECTORIES: tuple[Callable[[int], Trajectory], ...] = (random_walk, noisy_descent, denoiser, language_model)
