"""Windows inside windows, and windows that an exception leaves."""

import contextlib
import warnings

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


class Watching:
    """A context that keeps what it is told at its end, and may swallow an error."""

    def __init__(self, swallows):
        self.swallows, self.told = swallows, None

    def __enter__(self):
        return self

    def __exit__(self, *told):
        self.told = told
        return self.swallows


@pytest.mark.parametrize("window", ["attempt", "accumulate"])
@pytest.mark.parametrize("swallows", [True, False])
def test_what_accumulate_makes_of_an_error_is_what_becomes_of_it(monkeypatch, window, swallows):
    accelerator, model, _ = make()
    inner, error = Watching(swallows), KeyError("lost")
    monkeypatch.setattr(type(accelerator).__mro__[1], "accumulate", lambda self, *models: inner)
    expected = contextlib.nullcontext() if swallows else pytest.raises(KeyError, match="lost")
    with expected, getattr(accelerator, window)(model):
        raise error
    kind, told, trace = inner.told
    assert (kind, told) == (KeyError, error)
    assert trace.tb_frame.f_code.co_filename == __file__


def test_only_attempt_yields_the_update():
    accelerator, model, _ = make()
    with accelerator.accumulate(model) as nothing:
        assert nothing is None
    with accelerator.attempt(model) as update:
        assert update is not None


def test_a_loop_whose_optimizer_is_not_prepared_is_told_so_once():
    accelerator = accelerate_ext.Accelerator(cpu=True)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model = accelerator.prepare(model)
    told = []
    for _ in range(3):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with accelerator.attempt(model) as update:
                step(accelerator, model, optimizer)
        told += [str(one.message) for one in caught]
        assert not update.applied
    assert len(told) == 1
    assert told[0].endswith("Give it to `accelerator.prepare`")
