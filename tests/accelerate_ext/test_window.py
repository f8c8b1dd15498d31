"""Windows inside windows, and windows that an exception leaves."""

import pytest
import torch

import accelerate_ext


def make(steps=1):
    torch.manual_seed(0)
    accelerator = accelerate_ext.Accelerator(cpu=True, gradient_accumulation_steps=steps)
    model = torch.nn.Linear(3, 1)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    return accelerator, model, optimizer


def step(accelerator, model, optimizer):
    accelerator.backward(model(torch.ones(2, 3)).square().mean())
    optimizer.step()
    optimizer.zero_grad()


def test_an_exception_in_an_inner_window_leaves_the_outer_one_open():
    accelerator, model, optimizer = make()
    with accelerator.attempt(model) as update:
        with pytest.raises(KeyError, match="inner"), accelerator.attempt(model):
            raise KeyError("inner")
        step(accelerator, model, optimizer)
    assert update.applied
    assert (accelerator.attempted_step, accelerator.applied_step) == (1, 1)


class Failing:
    """A context that fails at its end."""

    def __enter__(self):
        return self

    def __exit__(self, *error):
        raise RuntimeError("the end failed")


def test_a_window_whose_own_end_fails_is_closed_and_what_stepped_in_it_counts(monkeypatch):
    accelerator, model, optimizer = make()
    monkeypatch.setattr(type(accelerator).__mro__[1], "accumulate", lambda self, *models: Failing())
    with pytest.raises(RuntimeError, match="the end failed"), accelerator.attempt(model):
        step(accelerator, model, optimizer)
    monkeypatch.undo()
    assert accelerator.applied_step == 1
    with accelerator.attempt(model) as update:
        step(accelerator, model, optimizer)
    assert update.applied
    assert (accelerator.attempted_step, accelerator.applied_step) == (2, 2)
