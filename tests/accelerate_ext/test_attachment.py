"""Attaching to an Accelerator that was made elsewhere, and detaching."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import warnings
import weakref

import accelerate
import pytest
import torch

import accelerate_ext
from accelerate_ext import attach, detach


class Custom(accelerate.Accelerator):
    """Somebody else's Accelerator."""

    def where(self) -> str:
        return "here"


def test_attaching_before_preparing_counts(loop):
    training = loop(lambda **options: attach(accelerate.Accelerator(**options)), infinite=[1], batches=4)
    record = training.run()
    assert (record.accelerator.applied_step, record.accelerator.skipped_steps) == (3, 1)


def test_attaching_later_counts_from_there_on(loop):
    training = loop(accelerate.Accelerator, infinite=[1], batches=4)
    record, loader = training.prepare()
    optimizer = record.optimizer
    training.train(record, loader)
    assert attach(record.accelerator) is record.accelerator
    training.train(record, loader)
    assert record.optimizer is optimizer
    assert (record.accelerator.applied_step, optimizer.applied_step) == (3, 3)
    assert record.scheduler.optimizers == [optimizer]


def test_options_are_those_of_the_subclass(loop):
    accelerator = attach(accelerate.Accelerator(cpu=True), skip_nonfinite=True, max_consecutive_skips=3)
    assert accelerator.max_consecutive_skips == 3
    assert accelerator._attempts.guard is not None


def test_attaching_twice_is_attaching_once():
    accelerator = attach(accelerate.Accelerator(cpu=True))
    attempts = accelerator._attempts
    assert attach(accelerator) is accelerator
    assert accelerator._attempts is attempts
    assert len(accelerator._save_model_state_pre_hook) == 1


def snapshot(accelerator, optimizer):
    return (
        type(accelerator),
        set(vars(accelerator)),
        type(optimizer),
        set(vars(optimizer)),
        dict(accelerator._save_model_state_pre_hook),
        dict(accelerator._load_model_state_pre_hook),
        [parameter._post_accumulate_grad_hooks for group in optimizer.param_groups for parameter in group["params"]],
    )


@pytest.mark.parametrize("cls", [accelerate.Accelerator, Custom])
@pytest.mark.parametrize("scaler", [None, {"init_scale": 16.0}])
def test_detaching_undoes_it(loop, cls, scaler):
    training = loop(cls, infinite=[1], batches=3, scaler=scaler, bad_value=1.0 if scaler is None else float("inf"))
    record, loader = training.prepare()
    before = snapshot(record.accelerator, record.optimizer)
    attach(record.accelerator)
    assert isinstance(record.accelerator, cls) and isinstance(record.accelerator, accelerate_ext.Accelerator)
    assert detach(record.accelerator) is record.accelerator
    after = snapshot(record.accelerator, record.optimizer)
    assert [list(hooks or ()) for hooks in before[-1]] == [list(hooks or ()) for hooks in after[-1]]
    assert before[:-1] == after[:-1]
    training.train(record, loader)
    plain = loop(cls, infinite=[1], batches=3, scaler=scaler, bad_value=training.bad_value).run()
    assert all(torch.equal(one, other) for one, other in zip(record.weights, plain.weights, strict=True))


def test_detaching_after_training_leaves_the_flag_of_the_last_step(loop):
    record = loop(infinite=[2], batches=3).run()
    detach(record.accelerator)
    assert type(record.accelerator) is accelerate.Accelerator
    assert record.optimizer.step_was_skipped


def test_a_subclass_keeps_its_methods():
    accelerator = attach(Custom(cpu=True))
    assert accelerator.where() == "here"
    assert type(accelerator).__name__ == "Custom"


def test_detaching_a_plain_accelerator_does_nothing():
    accelerator = accelerate.Accelerator(cpu=True)
    assert detach(accelerator) is accelerator


def test_anything_else_is_refused():
    with pytest.raises(TypeError, match=r"`accelerator` must be an accelerate\.Accelerator, got int"):
        attach(3)
    with pytest.raises(TypeError, match=r"`accelerator` must be an accelerate\.Accelerator, got str"):
        detach("accelerator")


def test_a_refused_option_changes_nothing():
    accelerator = accelerate.Accelerator(cpu=True)
    with pytest.raises(ValueError, match="`max_consecutive_skips`"):
        attach(accelerator, max_consecutive_skips=0)
    assert type(accelerator) is accelerate.Accelerator


def test_an_accelerator_can_be_freed(forget):
    import gc

    accelerator = accelerate_ext.Accelerator(cpu=True)
    model = torch.nn.Linear(1, 1)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters()))
    gone = weakref.ref(accelerator)
    del accelerator, model, optimizer
    gc.collect()
    assert gone() is None


@pytest.mark.processes
@pytest.mark.xdist_group("imports")
def test_importing_loads_neither_transformers_nor_anything_else_that_is_heavy():
    code = (
        "import accelerate, sys; before = set(sys.modules); import accelerate_ext; "
        "print(*sorted({name.split('.')[0] for name in set(sys.modules) - before}))"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert loaded == ["accelerate", "accelerate_ext"]


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'accelerate_ext' has no attribute 'nothing'"):
        accelerate_ext.nothing  # noqa: B018


@pytest.mark.parametrize("attached_first", [False, True])
def test_a_scheduler_on_the_prepared_optimizer_is_no_hindrance(attached_first):
    """torch's schedulers replace `step` on the object; the Trainer makes them on the prepared optimizer."""
    accelerator = accelerate.Accelerator(cpu=True)
    accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
    model = torch.nn.Linear(1, 1)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters()))
    if attached_first:
        attach(accelerator)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    attach(accelerator)

    def update(factor=1.0):
        accelerator.backward(model(torch.ones(1, 1)).sum() * factor)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()

    with warnings.catch_warnings():
        warnings.simplefilter("error")  # torch's, that the step was replaced or forgotten
        update()
        update(float("inf"))
        assert (accelerator.applied_step, accelerator.skipped_steps) == (1, 1)
        before = model.weight.item()
        detach(accelerator)
        update()
    assert model.weight.item() != before
    assert type(optimizer) is accelerate.optimizer.AcceleratedOptimizer


def test_attaching_again_after_a_scheduler_was_made_while_attached():
    accelerator = attach(accelerate.Accelerator(cpu=True))
    model = torch.nn.Linear(1, 1)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters()))
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    for _ in range(3):
        before = model.weight.item()
        accelerator.backward(model(torch.ones(1, 1)).sum())
        optimizer.step()
        optimizer.zero_grad()
        assert model.weight.item() != before
        assert accelerator.applied_step == 1
        detach(accelerator)
        accelerator.backward(model(torch.ones(1, 1)).sum())
        optimizer.step()
        optimizer.zero_grad()
        attach(accelerator)
        assert accelerator.applied_step == 0


def test_detaching_within_a_window_ends_the_window_as_usual(loop):
    record, loader = loop(batches=2, scaler=None).prepare()
    for batch in loader:
        with record.accelerator.accumulate(record.model):
            detach(record.accelerator)
            record.accelerator.backward(record.model(batch).mean())
            record.optimizer.step()
        assert type(record.accelerator) is accelerate.Accelerator


def test_a_switch_that_a_counting_accelerator_lacks_is_refused_and_not_ignored():
    accelerator = attach(accelerate.Accelerator(cpu=True))
    with pytest.raises(ValueError, match=r"`skip_nonfinite` must be switched on .* `detach` it first"):
        attach(accelerator, skip_nonfinite=True)
    guarded = accelerate_ext.Accelerator(cpu=True, skip_nonfinite=True)
    assert attach(guarded, skip_nonfinite=True) is guarded


@pytest.mark.parametrize("make", [accelerate_ext.Accelerator, lambda cpu: attach(Custom(cpu=cpu))])
def test_a_pickle_goes_on_counting_from_where_it_was(loop, make):
    training = loop(lambda cpu, **rest: make(cpu=cpu), infinite=[1], batches=4)
    record, loader = training.prepare()
    training.train(record, loader)
    record.accelerator.max_consecutive_skips = 7
    accelerator, model = pickle.loads(pickle.dumps((record.accelerator, record.model)))
    assert type(accelerator) is type(record.accelerator)
    optimizer = accelerator._optimizers[0]
    assert (accelerator.attempted_step, accelerator.applied_step, accelerator.max_consecutive_skips) == (4, 3, 7)
    for _ in range(2):
        with accelerator.attempt(model) as update:
            accelerator.backward(model(torch.ones(1, 4)).mean())
            optimizer.step()
            optimizer.zero_grad()
        assert update.applied
    assert (accelerator.attempted_step, accelerator.applied_step, optimizer.applied_step) == (6, 5, 5)
    assert (record.accelerator.attempted_step, record.optimizer.applied_step) == (4, 3)
    assert len(accelerator._save_model_state_pre_hook) == len(accelerator._load_model_state_pre_hook) == 1


def test_a_pickle_notices_gradients_that_nobody_reported():
    accelerator = accelerate_ext.Accelerator(cpu=True)
    model = torch.nn.Linear(1, 1)
    prepared = accelerator.prepare(model, torch.optim.SGD(model.parameters()))
    accelerator, (model, optimizer) = pickle.loads(pickle.dumps((accelerator, prepared)))
    model(torch.ones(1, 1)).sum().backward()
    optimizer.step()
    assert accelerator.applied_step == 1


def test_a_pickle_keeps_back_updates_that_are_not_finite():
    accelerator = accelerate_ext.Accelerator(cpu=True, skip_nonfinite=True)
    model = torch.nn.Linear(1, 1)
    prepared = accelerator.prepare(model, torch.optim.SGD(model.parameters()))
    accelerator, (model, optimizer) = pickle.loads(pickle.dumps((accelerator, prepared)))
    accelerator.backward(model(torch.ones(1, 1)).sum() * float("nan"))
    optimizer.step()
    assert accelerator.skipped_steps == 1 and torch.isfinite(model.weight).all()


def test_a_pickle_keeps_saving_counts(loop, tmp_path):
    record = loop(batches=3, scaler=None).run()
    copied = pickle.loads(pickle.dumps(record.accelerator))
    copied.save_state(str(tmp_path / "of the copy"))
    assert json.loads((tmp_path / "of the copy" / "applied_step.json").read_text())["applied_step"] == 3
