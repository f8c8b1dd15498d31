"""Skipping updates that are not finite where no loss scale is in use."""

from __future__ import annotations

import accelerate
import pytest
import torch

import accelerate_ext
from accelerate_ext.nonfinite import check_guard

ON = {"skip_nonfinite": True}


@pytest.mark.parametrize("kind", ["adamw", "adamw fused", "sgd", "sgd fused", "silent", "schedulefree"])
@pytest.mark.parametrize("value", [float("inf"), float("nan")])
@pytest.mark.parametrize("clip", [None, 1.0])
def test_an_update_with_non_finite_gradients_is_skipped_and_counted(loop, kind, value, clip):
    training = {"optimizer": kind, "infinite": [0, 3], "batches": 8, "bad_value": value, "clip": clip, "scaler": None}
    plain = loop(accelerate.Accelerator, **training).run()
    ours = loop(options=ON, **training).run()
    assert any(not weight.isfinite().all() for weight in plain.weights)
    assert all(weight.isfinite().all() for weight in ours.weights)
    assert ours.flags == [True, False, False, True, False, False, False, False]
    assert (ours.accelerator.applied_step, ours.accelerator.skipped_steps) == (6, 2)
    assert ours.optimizer.skipped_steps == 2


@pytest.mark.parametrize("kind", ["adamw", "adamw fused", "sgd", "sgd fused", "silent", "schedulefree"])
@pytest.mark.parametrize("accumulation", [1, 3])
@pytest.mark.parametrize("clip", [None, 0.1])
@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_a_finite_run_is_bit_identical(loop, kind, accumulation, clip, precision):
    training = {"optimizer": kind, "batches": 8, "accumulation": accumulation, "clip": clip, "scaler": None}
    options = {"mixed_precision": precision}
    plain = loop(accelerate.Accelerator, options=options, **training).run()
    ours = loop(options=options | ON, **training).run()
    assert all(torch.equal(one, other) for one, other in zip(plain.weights, ours.weights, strict=True))
    assert plain.lrs == ours.lrs
    for one, other in zip(plain.optimizer.state.values(), ours.optimizer.state.values(), strict=True):
        assert one.keys() == other.keys()
        assert all(torch.equal(torch.as_tensor(one[name]), torch.as_tensor(other[name])) for name in one)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_any_dtype_of_gradients_is_looked_at(dtype):
    accelerator = accelerate_ext.Accelerator(cpu=True, **ON)
    model = torch.nn.Linear(2, 1).to(dtype)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.5))
    before = model.weight.detach().clone()
    outcomes = []
    for factor in (float("inf"), 1.0):
        with accelerator.attempt(model) as update:
            accelerator.backward(model(torch.ones(1, 2, dtype=dtype)).sum() * factor)
            optimizer.step()
            optimizer.zero_grad()
        outcomes.append(update.outcome)
    assert outcomes == ["skipped", "applied"]
    assert torch.equal(model.weight, before - 0.5)


def test_clipping_by_value_does_not_hide_an_infinity():
    accelerator = accelerate_ext.Accelerator(cpu=True, **ON)
    model = torch.nn.Linear(1, 1)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters()))
    with accelerator.attempt(model) as update:
        accelerator.backward(model(torch.ones(1, 1)).sum() * float("inf"))
        accelerator.clip_grad_value_(model.parameters(), 1.0)
        optimizer.step()
    assert update.skipped


def test_clipping_each_micro_batch_does_not_hide_a_later_nan(loop):
    record, loader = loop(batches=2, accumulation=2, scaler=None, options=ON).prepare()
    for factor, batch in zip((1.0, float("nan")), loader, strict=True):
        with record.accelerator.attempt(record.model) as update:
            record.accelerator.backward(record.model(batch).mean() * factor)
            record.accelerator.clip_grad_norm_(record.model.parameters(), 1.0)
            record.optimizer.step()
            record.optimizer.zero_grad()
    assert update.skipped


def test_with_two_optimizers_each_is_guarded():
    accelerator = accelerate_ext.Accelerator(cpu=True, **ON)
    models = [torch.nn.Linear(1, 1) for _ in range(2)]
    optimizers = [torch.optim.SGD(model.parameters()) for model in models]
    first, second, one, two = accelerator.prepare(*models, *optimizers)
    with accelerator.attempt(first, second) as update:
        accelerator.backward(first(torch.ones(1, 1)).sum() * float("nan") + second(torch.ones(1, 1)).sum())
        one.step()
        two.step()
    assert (one.step_was_skipped, two.step_was_skipped, update.applied) == (True, False, False)
    assert (one.applied_step, two.applied_step) == (0, 1)


def test_nothing_is_scaled_and_saved_scalers_stay_none(loop, tmp_path):
    record = loop(batches=2, scaler=None, options=ON).run()
    assert record.accelerator.scaler is None
    record.accelerator.save_state(str(tmp_path))
    assert not (tmp_path / "scaler.pt").exists()


def test_the_limit_of_skips_holds_here_too(loop):
    training = loop(infinite=range(9), batches=9, scaler=None, options=ON | {"max_consecutive_skips": 4})
    with pytest.raises(
        accelerate_ext.SkippedUpdatesError, match=r"4 updates in a row .* no loss scale is in use"
    ) as error:
        training.run()
    assert "float16" not in str(error.value)
    assert str(error.value).endswith("or None to never stop.")


def test_a_switch_that_is_none_is_refused():
    with pytest.raises(TypeError, match="`skip_nonfinite` must be True or False, got 'no'"):
        accelerate_ext.Accelerator(cpu=True, skip_nonfinite="no")
    plain = accelerate.Accelerator(cpu=True)
    with pytest.raises(TypeError, match="`skip_nonfinite` must be True or False, got 1"):
        accelerate_ext.attach(plain, skip_nonfinite=1)
    assert type(plain) is accelerate.Accelerator


def test_a_scaler_comes_first(loop):
    with_guard = loop(infinite=[1], batches=4, options=ON).run()
    without = loop(infinite=[1], batches=4).run()
    assert with_guard.scales == without.scales
    assert all(torch.equal(one, other) for one, other in zip(with_guard.weights, without.weights, strict=True))


def test_an_engine_that_makes_the_update_itself_is_refused():
    accelerator = accelerate.Accelerator(cpu=True)
    accelerator.state.distributed_type = accelerate.DistributedType.MEGATRON_LM
    with pytest.raises(ValueError, match="`skip_nonfinite` must be off with MEGATRON_LM"):
        check_guard(accelerator)


@pytest.mark.parametrize("given", ["prepared", "inner", "none"])
def test_with_a_scaler_the_gradients_are_unscaled_by_the_scaler(scaled, given):
    norms = {}
    for switch in (True, False):
        accelerator = scaled(options={"mixed_precision": "fp16", "skip_nonfinite": switch})
        model = torch.nn.Linear(1, 1)
        torch.nn.init.ones_(model.weight)
        model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters()))
        norms[switch] = []
        for _ in range(3):
            with accelerator.attempt(model):
                accelerator.backward(model(torch.ones(1, 1)).float().sum())
                accelerator.unscale_gradients(
                    {"prepared": optimizer, "inner": optimizer.optimizer, "none": None}[given]
                )
                norms[switch].append(accelerator.clip_grad_norm_(model.parameters(), 1.0).item())
                optimizer.step()
                optimizer.zero_grad()
        assert accelerator.applied_step == 3
    assert norms[True] == norms[False] == pytest.approx([2**0.5] * 3)
