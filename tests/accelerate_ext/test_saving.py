"""A save that is interrupted leaves the earlier checkpoint whole."""

from __future__ import annotations

import os
import sys
import warnings

import pytest
import torch
from accelerate.utils import ProjectConfiguration

posix = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork to kill a process at a chosen moment")
TOUCHES_DISK = {"open", "os.rename", "os.mkdir", "os.rmdir", "os.remove", "shutil.rmtree"}


def killed_at(event_number: int, action) -> bool:
    """Run `action` in a process of its own that dies at the n-th thing it does on the disk; whether it died."""
    child = os.fork()
    if child == 0:
        left = [event_number]

        def watch(event, args):
            if event in TOUCHES_DISK:
                if not left[0]:
                    os._exit(9)
                left[0] -= 1

        sys.addaudithook(watch)
        try:
            action()
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status) == 9


@posix
@pytest.mark.processes
@pytest.mark.xdist_group("kills")
@pytest.mark.parametrize("same_folder", [True, False])
def test_the_earlier_checkpoint_loads_whenever_the_process_is_killed(loop, tmp_path, same_folder):
    training = loop(batches=3)
    record, loader = training.prepare()
    training.train(record, loader)
    old_weights = [parameter.detach().clone() for parameter in record.model.parameters()]
    record.accelerator.save_state(str(tmp_path / "checkpoint-3"))
    training.train(record, loader)
    new_weights = [parameter.detach().clone() for parameter in record.model.parameters()]
    target = tmp_path / ("checkpoint-3" if same_folder else "checkpoint-6")
    outcomes = []
    for event in range(10_000):
        died = killed_at(event, lambda: record.accelerator.save_state(str(target)))
        if not died:
            break
        record.accelerator.load_state(str(tmp_path / "checkpoint-3"))
        loaded = list(record.model.parameters())
        applied = record.accelerator.applied_step
        outcomes.append(applied)
        expected = {3: old_weights, 6: new_weights}[applied]
        assert all(torch.equal(one, two) for one, two in zip(loaded, expected, strict=True)), event
        assert not target.exists() or (target / "applied_step.json").exists()
        if applied == 6:  # the save had come to its end: put the old state back for the next round
            put_back(record, old_weights, 3, tmp_path / "checkpoint-3")
        put_back(record, new_weights, 6, None)
    assert len(outcomes) > 20
    assert outcomes[0] == 3
    assert (6 in outcomes) == same_folder


def put_back(record, weights, applied, folder):
    with torch.no_grad():
        for parameter, weight in zip(record.model.parameters(), weights, strict=True):
            parameter.copy_(weight)
    record.accelerator._attempts.restart(
        {"attempted": applied, "applied": applied, "skipped": 0, "skipped_in_a_row": 0}
    )
    if folder is not None:
        record.accelerator.save_state(str(folder))


def test_files_of_others_in_the_folder_stay(loop, tmp_path):
    record = loop(batches=1).run()
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "events").write_text("mine")
    (tmp_path / "README.md").write_text("mine")
    for _ in range(2):
        record.accelerator.save_state(str(tmp_path))
    assert (tmp_path / "README.md").read_text() == (tmp_path / "logs" / "events").read_text() == "mine"
    assert (tmp_path / "model.safetensors").is_file()
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_the_files_are_those_of_accelerate_and_ours(loop, plain_class, tmp_path):
    for cls, folder in ((plain_class, "plain"), (type(loop().prepare()[0].accelerator), "ours")):
        loop(cls, batches=1).run().accelerator.save_state(str(tmp_path / folder))
    ours, plain = ({path.name for path in (tmp_path / folder).rglob("*")} for folder in ("ours", "plain"))
    assert ours - plain == {"applied_step.json"}
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["ours", "plain"]


def test_an_error_while_saving_leaves_nothing_behind(loop, tmp_path):
    record = loop(batches=1).run()

    def fail(*args):
        raise OSError("disk full")

    record.accelerator.register_save_state_pre_hook(fail)
    with pytest.raises(OSError, match="disk full"):
        record.accelerator.save_state(str(tmp_path / "checkpoint"))
    assert list(tmp_path.iterdir()) == []


def automatic(loop, tmp_path, total_limit=None):
    configuration = ProjectConfiguration(
        project_dir=str(tmp_path), automatic_checkpoint_naming=True, total_limit=total_limit
    )
    return loop(batches=2, options={"project_config": configuration})


def test_automatic_names_go_on_counting_and_the_limit_holds(loop, tmp_path):
    record = automatic(loop, tmp_path, total_limit=2).run()
    saved = [record.accelerator.save_state() for _ in range(4)]
    assert [path.name for path in saved] == [f"checkpoint_{number}" for number in range(4)]
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["checkpoint_2", "checkpoint_3"]
    record.accelerator.load_state()
    assert record.accelerator.applied_step == 2
    assert record.accelerator.project_configuration.automatic_checkpoint_naming


@posix
@pytest.mark.processes
@pytest.mark.xdist_group("kills")
def test_with_a_limit_of_one_there_is_a_checkpoint_at_any_moment(loop, tmp_path):
    record = automatic(loop, tmp_path, total_limit=1).run()
    record.accelerator.save_state()
    for event in range(10_000):
        if not killed_at(event, record.accelerator.save_state):
            break
        record.accelerator.load_state()  # the newest by name
        assert record.accelerator.applied_step == 2
        if (tmp_path / "checkpoints" / "checkpoint_1").exists():
            break
    assert event > 20


def test_an_automatic_name_that_is_taken_is_refused(loop, tmp_path):
    record = automatic(loop, tmp_path).run()
    (tmp_path / "checkpoints" / "checkpoint_0").mkdir(parents=True)
    with pytest.raises(ValueError, match="checkpoint_0 must not exist yet"):
        record.accelerator.save_state()


def test_no_folder_is_refused(loop):
    record = loop(batches=1).run()
    with pytest.raises(ValueError, match="`output_dir` must name a folder"):
        record.accelerator.save_state()


def test_a_folder_within_folders_is_made(loop, tmp_path):
    record = loop(batches=1).run()
    record.accelerator.save_state(str(tmp_path / "a" / "b" / "checkpoint-1"))
    assert (tmp_path / "a" / "b" / "checkpoint-1" / "model.safetensors").is_file()


def test_no_warnings_from_saving(loop, tmp_path):
    record = loop(batches=1).run()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        record.accelerator.save_state(str(tmp_path / "checkpoint"))


def test_a_tilde_is_the_home_folder_as_it_is_for_loading(loop, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("USERPROFILE", str(tmp_path / "home"))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    record = loop(batches=2).run()
    assert record.accelerator.save_state("~/checkpoint") == tmp_path / "home" / "checkpoint"
    assert not list((tmp_path / "elsewhere").iterdir())
    record.accelerator.load_state("~/checkpoint")
    assert record.accelerator.applied_step == 2


def test_a_file_in_place_of_the_folder_is_refused_before_anything_is_written(loop, tmp_path):
    record = loop(batches=1).run()
    (tmp_path / "checkpoint").write_text("mine")
    with pytest.raises(NotADirectoryError, match=r"`output_dir` must name a folder, .*checkpoint is a file"):
        record.accelerator.save_state(str(tmp_path / "checkpoint"))
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]


@pytest.mark.parametrize(("limit", "left"), [(2, ["checkpoint_4", "checkpoint_9"]), (0, ["checkpoint_4"])])
def test_the_limit_never_takes_the_checkpoint_that_was_just_saved(loop, tmp_path, limit, left):
    """After a step back to an older checkpoint there are some with higher numbers."""
    record = automatic(loop, tmp_path, total_limit=limit).run()
    for number in (7, 8, 9):
        (tmp_path / "checkpoints" / f"checkpoint_{number}").mkdir(parents=True)
    record.accelerator.project_configuration.iteration = 4
    record.accelerator.save_state()
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == left
