"""Each fact about plain Accelerate that this package exists for: shown on plain Accelerate, and put right here."""

from __future__ import annotations

import math

import accelerate
import pytest
import torch
from torch import nn

import accelerate_ext

INF = float("inf")


def small_model() -> nn.Module:
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    return model


def test_fact_1_the_skip_flag_is_not_stale_on_micro_batches(loop):
    plain = loop(accelerate.Accelerator, infinite=[0], batches=6, accumulation=3).run()
    ours = loop(infinite=[0], batches=6, accumulation=3).run()
    assert plain.flags == [False, False, True, True, True, False]  # true just before the next step, too
    assert ours.flags == [False, False, True, False, False, False]


def test_fact_1_an_update_has_three_states(loop):
    record = loop(infinite=[0], batches=6, accumulation=3, window="attempt").run()
    idle = "not attempted"
    assert record.outcomes == [idle, idle, "skipped", idle, idle, "applied"]


@pytest.mark.parametrize(
    ("cls", "seen"), [(accelerate.Accelerator, [True, True]), (accelerate_ext.Accelerator, [True, False])]
)
def test_fact_2_one_optimizers_skip_does_not_hide_the_other_ones_update(scaled, cls, seen):
    accelerator = scaled(cls)
    first, second = small_model(), small_model()
    first, second, one, two = accelerator.prepare(
        first, second, torch.optim.SGD(first.parameters()), torch.optim.SGD(second.parameters())
    )
    skipped = []
    for model, optimizer, factor in ((first, one, INF), (second, two, 1.0)):  # by turns, as a GAN does
        with accelerator.accumulate(model):
            accelerator.backward(model(torch.ones(1, 1)).sum() * factor)
            optimizer.step()
            optimizer.zero_grad()
        skipped.append(accelerator.optimizer_step_was_skipped)
    assert skipped == seen
    if cls is accelerate_ext.Accelerator:
        assert (one.applied_step, two.applied_step) == (0, 1)
        assert (accelerator.attempted_step, accelerator.applied_step) == (2, 1)


@pytest.mark.parametrize("kind", ["adamw fused", "sgd fused"])
def test_fact_3_a_fused_optimizers_skip_is_reported_and_its_scheduler_waits(loop, kind):
    plain = loop(accelerate.Accelerator, kind, infinite=[1], batches=3).run()
    ours = loop(optimizer=kind, infinite=[1], batches=3).run()
    assert plain.flags == [False, False, False]
    assert ours.flags == [False, True, False]
    assert ours.lrs[1] == ours.lrs[0]
    assert plain.lrs[1] < plain.lrs[0]
    assert ours.accelerator.applied_step == 2


@pytest.mark.parametrize("window", ["accumulate", "attempt"])
def test_fact_4_a_boundary_without_a_step_is_a_skip(scaled, window):
    accelerator = scaled()
    model = small_model()
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters()))
    flags = []
    for factor in (1.0, INF, 1.0):
        with getattr(accelerator, window)(model):
            loss = model(torch.ones(1, 1)).sum() * factor
            accelerator.backward(loss)
            if math.isfinite(model.weight.grad.item()):  # a guard written by hand
                optimizer.step()
            optimizer.zero_grad()
        flags.append((accelerator.update_applied, optimizer.step_was_skipped))
    assert flags == [(True, False), (False, True), (True, False)]
    assert (accelerator.attempted_step, accelerator.applied_step, accelerator.skipped_steps) == (3, 2, 1)
    assert (optimizer.attempted_step, optimizer.applied_step, optimizer.skipped_steps) == (3, 2, 1)


def test_fact_4_plain_accelerate_keeps_the_old_answer(scaled):
    accelerator = scaled(accelerate.Accelerator)
    model = small_model()
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters()))
    accelerator.backward(model(torch.ones(1, 1)).sum())
    optimizer.step()
    accelerator.backward(model(torch.ones(1, 1)).sum() * INF)
    assert optimizer.step_was_skipped is False  # nobody stepped, nobody told it


def joint_update(accelerator, first_factor: float = 1.0, clip: bool = False):
    """Two models, two optimizers, one loss of gradient -2 for each; the first one's times `first_factor`."""
    first, second = small_model(), small_model()
    first, second, one, two = accelerator.prepare(
        first, second, torch.optim.SGD(first.parameters(), lr=1.0), torch.optim.SGD(second.parameters(), lr=1.0)
    )
    with accelerator.accumulate(first, second):
        loss = first(torch.ones(1, 1)).sum() * -2 * first_factor + second(torch.ones(1, 1)).sum() * -2
        accelerator.backward(loss)
        if clip:
            accelerator.clip_grad_norm_([*first.parameters(), *second.parameters()], 100.0)
        one.step()
        two.step()
        one.zero_grad()
        two.zero_grad()
    return first.weight.item(), second.weight.item()


@pytest.mark.parametrize(("cls", "weight"), [(accelerate.Accelerator, 4.0), (accelerate_ext.Accelerator, 2.0)])
def test_fact_5_the_second_optimizer_is_unscaled_by_the_scale_its_loss_had(scaled, cls, weight):
    accelerator = scaled(cls)
    assert joint_update(accelerator, first_factor=INF) == (0.0, weight)
    assert accelerator.scaler.get_scale() == 8.0


@pytest.mark.parametrize(("cls", "weight"), [(accelerate.Accelerator, 0.125), (accelerate_ext.Accelerator, 2.0)])
def test_fact_5_clipping_over_both_unscales_once(scaled, cls, weight):
    accelerator = scaled(cls, options={"mixed_precision": "fp16"})
    assert joint_update(accelerator, clip=True) == (2.0, weight)


def overflow_for_ever(accelerator, attempts: int):
    model = small_model()
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0))
    for attempt in range(attempts + 1):
        with accelerator.accumulate(model):
            factor = INF if attempt < attempts else 1.0
            accelerator.backward(model(torch.ones(1, 1)).sum() * factor)
            optimizer.step()
            optimizer.zero_grad()
    return model, optimizer


def test_fact_6_plain_accelerate_loses_the_weights_and_reports_success(scaled):
    accelerator = scaled(accelerate.Accelerator)
    model, optimizer = overflow_for_ever(accelerator, 154)
    assert accelerator.scaler.get_scale() == 0.0
    assert not optimizer.step_was_skipped
    assert model.weight.isnan().all()


@pytest.mark.parametrize("kind", ["sgd", "sgd fused"])
def test_fact_6_an_error_comes_while_the_weights_are_whole(scaled, make, kind):
    accelerator = scaled()
    model = small_model()
    model, optimizer = accelerator.prepare(model, make(kind, model.parameters()))

    def overflow_on_and_on():
        for _ in range(154):
            with accelerator.accumulate(model):
                accelerator.backward(model(torch.ones(1, 1)).sum() * INF)
                optimizer.step()
                optimizer.zero_grad()

    with pytest.raises(accelerate_ext.SkippedUpdatesError, match="updates in a row were skipped"):
        overflow_on_and_on()
    assert 50 <= accelerator.skipped_steps <= 66
    assert accelerator.scaler.get_scale() > 0
    assert model.weight.isfinite().all()


@pytest.mark.parametrize("kind", ["adamw", "adamw fused"])
def test_fact_7_the_step_of_a_checkpoint_helper_is_no_update(scaled, make, kind):
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

    accelerator = scaled()
    model = small_model()
    model, optimizer = accelerator.prepare(model, make(kind, model.parameters()))
    accelerator.scaler.scale(torch.ones(()))  # else GradScaler refuses to step at all
    calls = []
    optimizer.optimizer.register_step_post_hook(lambda *args: calls.append(1))
    get_optimizer_state_dict(model, optimizer)
    assert len(calls) == 1  # it did step
    assert (accelerator.attempted_step, optimizer.attempted_step, accelerator.applied_step) == (0, 0, 0)
    assert not accelerator.update_applied


def test_fact_7_the_helper_after_a_skipped_first_update_is_no_update(scaled):
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

    accelerator = scaled()
    model = small_model()
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
    with accelerator.attempt(model) as update:
        accelerator.backward(model(torch.ones(1, 1)).sum() * INF)
        optimizer.step()
        optimizer.zero_grad()
    get_optimizer_state_dict(model, optimizer)
    assert update.skipped
    assert (accelerator.attempted_step, accelerator.applied_step) == (1, 0)


def test_fact_8_checkpoints_from_before_load(loop, tmp_path):
    plain = loop(accelerate.Accelerator, batches=3).run()
    plain.accelerator.save_state(str(tmp_path / "plain"))
    record, _ = loop().prepare()
    with pytest.warns(UserWarning, match=r"has no applied_step\.json"):
        record.accelerator.load_state(str(tmp_path / "plain"))
    assert record.accelerator.applied_step == 3


def test_fact_8_registering_an_object_would_have_made_them_unreadable(loop, tmp_path):
    plain = loop(accelerate.Accelerator, batches=1).run()
    plain.accelerator.save_state(str(tmp_path / "plain"))
    record, _ = loop(accelerate.Accelerator).prepare()
    record.accelerator.register_for_checkpointing(record.scheduler)
    with pytest.raises(RuntimeError, match="does not match the number of registered objects"):
        record.accelerator.load_state(str(tmp_path / "plain"))


def test_fact_10_an_assigned_scaler_skips_for_real(loop, either):
    record = loop(either, infinite=[1], batches=3).run()
    assert record.scales == [16.0, 8.0, 8.0]
    assert record.flags == [False, True, False]
