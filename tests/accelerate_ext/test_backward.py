"""Evidence of backward passes."""

from __future__ import annotations

import torch

from accelerate_ext.backward import BackwardPasses


def test_a_pass_that_nobody_reports_is_noticed():
    passes = BackwardPasses()
    parameter = torch.nn.Parameter(torch.ones(()))
    passes.watch([parameter])
    (parameter * 2).backward()
    assert passes.count > 0


def test_the_hooks_go_when_passes_are_reported():
    passes = BackwardPasses()
    parameter = torch.nn.Parameter(torch.ones(()))
    passes.watch([parameter])
    passes.report()
    assert passes.count == 1
    (parameter * 2).backward()
    assert passes.count == 1
    passes.watch([parameter])
    assert not parameter._post_accumulate_grad_hooks


def test_parameters_without_gradients_are_left_alone():
    passes = BackwardPasses()
    frozen = torch.nn.Parameter(torch.ones(()), requires_grad=False)
    passes.watch([frozen])
    assert not frozen._post_accumulate_grad_hooks


def test_a_gradient_that_is_assigned_is_no_pass():
    passes = BackwardPasses()
    parameter = torch.nn.Parameter(torch.ones(()))
    passes.watch([parameter])
    parameter.grad = torch.ones(())
    assert passes.count == 0
