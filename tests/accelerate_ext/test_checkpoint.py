"""The counts in a checkpoint, and training that goes on from one."""

from __future__ import annotations

import json
import warnings

import accelerate
import pytest
import torch
from torch import nn

import accelerate_ext
from accelerate_ext import CheckpointError, SkippedUpdatesError
from accelerate_ext.checkpoint import FILE_NAME, StoredCounts, counts_from_states

INFINITE = (0, 5, 7, 8, 13)  # attempts that overflow
UPDATES = 20
ACCUMULATION = 2
UPDATES_PER_EPOCH = 6  # 11 batches: the last window of an epoch is short


class Training:
    """20 updates, 5 of them skipped, over shuffled data, with a scheduler and AdamW."""

    def __init__(self, cls=accelerate_ext.Accelerator, fused: bool = False) -> None:
        accelerate.utils.set_seed(3)
        config = accelerate.utils.DataLoaderConfiguration(use_seedable_sampler=True)
        self.accelerator = cls(cpu=True, gradient_accumulation_steps=ACCUMULATION, dataloader_config=config)
        self.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=16.0, growth_interval=3)
        self.accelerator.native_amp = True
        model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05, fused=fused)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)
        data = torch.randn(22, 3)
        loader = torch.utils.data.DataLoader(data, batch_size=2, shuffle=True)
        self.model, self.optimizer, self.loader, self.scheduler = self.accelerator.prepare(
            model, optimizer, loader, scheduler
        )
        self.seen: list[list[float]] = []
        self.lrs: list[float] = []

    def train(self, attempts: int) -> None:
        """Go on until so many updates are attempted in all."""
        accelerator = self.accelerator
        for epoch in accelerator.epochs(10**6, UPDATES_PER_EPOCH):
            skip = accelerator.attempted_step % UPDATES_PER_EPOCH * ACCUMULATION
            self.loader.set_epoch(epoch)
            loader = accelerator.skip_first_batches(self.loader, skip) if skip else self.loader
            for batch in loader:
                self.micro_batch(batch)
                if accelerator.attempted_step == attempts:
                    return

    def micro_batch(self, batch: torch.Tensor) -> None:
        accelerator = self.accelerator
        self.seen.append(batch.flatten().tolist())
        with accelerator.attempt(self.model):
            loss = self.model(batch).pow(2).mean()
            is_bad = accelerator.attempted_step in INFINITE
            accelerator.backward(loss * float("inf") if is_bad else loss)
            self.optimizer.step()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self.scheduler.step()
            self.optimizer.zero_grad()
        if accelerator.sync_gradients:
            self.lrs.append(self.scheduler.get_last_lr()[0])

    def result(self):
        accelerator = self.accelerator
        return {
            "weights": {name: weight.tolist() for name, weight in self.model.state_dict().items()},
            "moments": [
                {key: torch.as_tensor(value).tolist() for key, value in state.items()}
                for state in self.optimizer.state.values()
            ],
            "counts": (accelerator.attempted_step, accelerator.applied_step, accelerator.skipped_steps),
            "of the optimizer": self.optimizer.counts(),
            "scale": accelerator.scaler.get_scale(),
            "lr": self.scheduler.get_last_lr(),
            "in a row": accelerator._attempts.skipped_in_a_row,
        }


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("stop", [7, 8, 9])
def test_stopping_and_going_on_equals_never_having_stopped(tmp_path, forget, stop, fused):
    whole = Training(fused=fused)
    whole.train(UPDATES)
    forget()
    first = Training(fused=fused)
    first.train(stop)
    first.accelerator.save_state(str(tmp_path / "checkpoint"))
    forget()
    second = Training(fused=fused)
    second.accelerator.load_state(str(tmp_path / "checkpoint"))
    assert second.accelerator.attempted_step == stop
    second.train(UPDATES)
    assert second.result() == whole.result()
    assert first.seen + second.seen == whole.seen
    assert first.lrs + second.lrs == whole.lrs
    assert whole.result()["counts"] == (20, 15, 5)


def test_resuming_at_the_applied_step_would_repeat_data(tmp_path, forget):
    first = Training()
    first.train(9)
    assert first.accelerator.attempted_step != first.accelerator.applied_step
    assert next(first.accelerator.epochs(100, 9)) == 1
    assert first.accelerator.applied_step // 9 == 0


def test_the_file_says_what_it_holds(loop, tmp_path):
    record = loop(infinite=[1, 3], batches=4).run()
    record.accelerator.save_state(str(tmp_path))
    assert json.loads((tmp_path / FILE_NAME).read_text()) == {
        "format": "accelerate_ext.applied_step/1",
        "attempted_step": 4,
        "applied_step": 2,
        "skipped_steps": 2,
        "skipped_in_a_row": 1,
        "optimizers": [{"attempted_step": 4, "applied_step": 2, "skipped_steps": 2, "skipped_in_a_row": 1}],
    }


def test_an_attempt_without_a_step_is_in_the_file(loop, tmp_path):
    record, loader = loop(batches=1).prepare()
    with record.accelerator.accumulate(record.model):
        record.accelerator.backward(record.model(next(iter(loader))).mean())
    record.accelerator.save_state(str(tmp_path))
    stored = StoredCounts.read(tmp_path)
    assert stored.attempts == stored.optimizers[0] == Counts(1, 0, 1, 1)
    record.optimizer.zero_grad()
    assert (record.accelerator.attempted_step, record.optimizer.skipped_steps) == (1, 1)


def Counts(attempted, applied, skipped, in_a_row):
    return {"attempted": attempted, "applied": applied, "skipped": skipped, "skipped_in_a_row": in_a_row}


def test_saving_within_the_window_keeps_the_update(loop, tmp_path):
    record, loader = loop(batches=1).prepare()
    with record.accelerator.attempt(record.model) as update:
        record.accelerator.backward(record.model(next(iter(loader))).mean())
        record.optimizer.step()
        record.optimizer.zero_grad()
        record.accelerator.save_state(str(tmp_path))
    assert update.applied
    assert record.accelerator.update_applied
    assert record.accelerator.applied_step == 1
    assert StoredCounts.read(tmp_path).attempts["applied"] == 1


def test_saving_between_the_backward_pass_and_the_step_keeps_the_attempt(loop, tmp_path):
    record, loader = loop(batches=1).prepare()
    with record.accelerator.attempt(record.model) as update:
        record.accelerator.backward(record.model(next(iter(loader))).mean())
        record.accelerator.save_state(str(tmp_path))
        record.optimizer.step()
    assert update.applied
    assert record.accelerator.applied_step == 1


def test_a_streak_of_skips_goes_on_behind_a_checkpoint(loop, tmp_path):
    training = loop(infinite=[0, 1], batches=2, options={"max_consecutive_skips": 2})
    record, loader = training.prepare()
    first, second = loader
    training.train(record, [first])
    record.accelerator.load_state(str(record.accelerator.save_state(str(tmp_path))))
    with pytest.raises(SkippedUpdatesError, match=r"^2 updates in a row were skipped .*the loss scale was .* 4 now"):
        training.train(record, [second], first_attempt=1)


def test_two_optimizers_have_their_own_counts_in_the_file(scaled, tmp_path, forget):
    def train(accelerator):
        models = [nn.Linear(1, 1) for _ in range(2)]
        prepared = accelerator.prepare(*models, *[torch.optim.SGD(model.parameters()) for model in models])
        return prepared[:2], prepared[2:]

    accelerator = scaled()
    models, optimizers = train(accelerator)
    for turn in (0, 1, 1):
        with accelerator.accumulate(models[turn]):
            accelerator.backward(models[turn](torch.ones(1, 1)).sum())
            optimizers[turn].step()
            optimizers[turn].zero_grad()
    accelerator.save_state(str(tmp_path))
    forget()
    other = scaled()
    _, optimizers = train(other)
    other.load_state(str(tmp_path))
    assert [optimizer.applied_step for optimizer in optimizers] == [1, 2]
    assert other.applied_step == 3


@pytest.mark.parametrize(
    ("kind", "applied"), [("adamw", 3), ("adamw fused", 3), ("schedulefree", 3), ("sgd", 0), ("silent", 0)]
)
def test_a_plain_checkpoint_gives_the_count_of_the_optimizers_state(loop, tmp_path, kind, applied):
    plain = loop(accelerate.Accelerator, kind, infinite=[1], batches=4).run()
    plain.accelerator.save_state(str(tmp_path))
    record, _ = loop(optimizer=kind).prepare()
    with pytest.warns(UserWarning, match=f"has no {FILE_NAME}.*continuing at {applied} applied updates"):
        record.accelerator.load_state(str(tmp_path))
    accelerator = record.accelerator
    assert (accelerator.applied_step, accelerator.attempted_step, accelerator.skipped_steps) == (applied, applied, 0)
    assert record.optimizer.applied_step == applied


def test_a_checkpoint_of_ours_loads_in_plain_accelerate(loop, tmp_path):
    ours = loop(infinite=[1], batches=4).run()
    ours.accelerator.save_state(str(tmp_path))
    plain, _ = loop(accelerate.Accelerator).prepare()
    plain.accelerator.load_state(str(tmp_path))
    for one, other in zip(ours.model.parameters(), plain.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_loading_a_checkpoint_with_counts_warns_about_nothing(loop, tmp_path):
    record = loop(batches=2).run()
    record.accelerator.save_state(str(tmp_path))
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        record.accelerator.load_state(str(tmp_path))


def test_counts_can_be_told_from_any_shape_of_step():
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters())
    assert counts_from_states([optimizer]).attempts == Counts(0, 0, 0, 0)
    for step in (3, 3.0, torch.tensor(3), torch.tensor([3.0])):
        optimizer.state[model.weight] = {"step": step}
        assert counts_from_states([optimizer]).attempts == Counts(3, 3, 0, 0)
    optimizer.state.clear()
    optimizer.param_groups[0]["step"] = 4
    assert counts_from_states([optimizer]).attempts == Counts(4, 4, 0, 0)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "Expecting"),
        ("[]", r"`format` must be 'accelerate_ext\.applied_step/1', got \[\]"),
        ("{}", "`format` must be .*, got None"),
        ('{"format": "accelerate_ext.applied_step/2"}', "got 'accelerate_ext.applied_step/2'"),
        ('{"format": "accelerate_ext.applied_step/1"}', "attempted_step"),
        ("\0", "Expecting"),
    ],
)
def test_a_damaged_file_is_named_and_nothing_is_loaded(loop, tmp_path, content, message):
    record = loop(batches=2).run()
    record.accelerator.save_state(str(tmp_path))
    (tmp_path / FILE_NAME).write_text(content)
    other, _ = loop(seed=5).prepare()
    before = [parameter.detach().clone() for parameter in other.model.parameters()]
    with pytest.raises(CheckpointError, match=message) as error:
        other.accelerator.load_state(str(tmp_path))
    assert str(tmp_path / FILE_NAME) in str(error.value)
    assert "delete it" in str(error.value)
    assert all(torch.equal(one, two) for one, two in zip(before, other.model.parameters(), strict=True))


def test_objects_that_are_registered_for_checkpointing_are_saved_as_before(loop, tmp_path):
    record = loop(batches=1).run()
    record.accelerator.register_for_checkpointing(record.scheduler.scheduler)
    record.accelerator.save_state(str(tmp_path))
    assert (tmp_path / "custom_checkpoint_0.pkl").exists()
    record.accelerator.load_state(str(tmp_path))


def test_the_hooks_of_others_are_called_with_the_folder(loop, tmp_path):
    record = loop(batches=1).run()
    folders = []

    def hook(models, weights, output_dir):
        folders.append(output_dir)
        (type(tmp_path)(output_dir) / "mine.txt").write_text("mine")

    record.accelerator.register_save_state_pre_hook(hook)
    assert record.accelerator.save_state(str(tmp_path / "checkpoint-1")) == tmp_path / "checkpoint-1"
    assert (tmp_path / "checkpoint-1" / "mine.txt").read_text() == "mine"
    assert len(folders) == 1


@pytest.mark.parametrize("state", [[], 3, torch.zeros(2)])
def test_state_of_a_parameter_that_is_no_dict_tells_nothing(state):
    optimizer = torch.optim.SGD(torch.nn.Linear(1, 1).parameters())
    optimizer.state[optimizer.param_groups[0]["params"][0]] = state
    assert counts_from_states([optimizer]).attempts == Counts(0, 0, 0, 0)


def test_an_optimizer_that_the_file_does_not_list_counts_by_its_own_state(loop, tmp_path):
    record = loop(batches=3).run()
    folder = record.accelerator.save_state(str(tmp_path))
    stored = json.loads((folder / FILE_NAME).read_text())
    (folder / FILE_NAME).write_text(json.dumps(stored | {"optimizers": []}))
    loop.train(loop(), record, [torch.ones(2, 4)])
    assert record.optimizer.applied_step == 4
    record.accelerator.load_state(str(folder))
    assert record.optimizer.applied_step == 3
