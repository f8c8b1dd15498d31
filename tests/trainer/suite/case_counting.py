"""What a skipped step leaves as it was, and what it moves on."""

from __future__ import annotations

import math

import harness
import pytest
from harness import OPTIMIZERS, train
from transformers import TrainerCallback

fused = pytest.param("adamw_torch_fused", marks=pytest.mark.accelerate)


@pytest.mark.parametrize("optim", ["adamw_torch", fused])
@pytest.mark.parametrize("max_grad_norm", [1.0, 0.0])
def test_all_requested_updates_are_applied(optim, max_grad_norm):
    run = train(6, max_steps=6, overflow={3}, optim=optim, max_grad_norm=max_grad_norm)
    assert (run.applied, run.state.global_step, len(run.attempts)) == (6, 6, 7)
