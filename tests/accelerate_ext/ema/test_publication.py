"""Snapshots whose way to the disk is not waited for: whole under their names or not there, and no error is lost."""

import copy
import errno
import os
import pickle
import signal
import subprocess
import sys
import threading
import time

import pytest
import torch
from accelerate.state import AcceleratorState, GradientState, PartialState
from safetensors.torch import load_file
from torch import nn

import accelerate_ext
from accelerate_ext.ema import PostHocEMA, find_sources, list_snapshots, plan

A_SNAPSHOT = 3  # two files and the folder


class Disk:
    """The real one, slowed down: each wait for it takes a permit, and those that are `broken` then fail."""

    def __init__(self, monkeypatch):
        self._permits, self._fsync = threading.Semaphore(0), os.fsync
        self.num_asked = self.num_waited = 0
        self.is_broken = False
        monkeypatch.setattr(os, "fsync", self.fsync)

    def fsync(self, descriptor):
        self.num_asked += 1
        assert self._permits.acquire(timeout=60), "the test has let nothing through"
        self.num_waited += 1
        if self.is_broken:
            raise OSError(errno.EIO, "Input/output error")
        self._fsync(descriptor)

    def let(self, count=A_SNAPSHOT, after=0.0):
        threading.Timer(after, self._permits.release, [count]).start()

    def is_asked(self, count):
        """Wait until so many waits have begun; all before them are over, and what follows them is done."""
        deadline = time.monotonic() + 60
        while self.num_asked < count:
            assert time.monotonic() < deadline
            time.sleep(0.001)

    def let_all(self):
        self._permits.release(1000)

    def settle(self):
        """What was let through has come to its end."""
        for thread in threading.enumerate():
            if thread.name.startswith("accelerate_ext.ema"):
                thread.join(60)


@pytest.fixture
def disk(monkeypatch):
    disk = Disk(monkeypatch)
    yield disk
    disk.let_all()
    disk.settle()


def run(model=None, **arguments):
    torch.manual_seed(0)
    model = model or nn.Linear(3, 2)
    ema = PostHocEMA(model, **arguments)
    train(model, ema, 1)
    return model, ema


def train(model, ema, step):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter))
    ema.update(step)


def times(folder):
    """Of the names in a folder, without looking into it as a reader of snapshots would, who waits."""
    return [int(name.split("-")[0]) for name in sorted(os.listdir(folder)) if name[0] != "."]


def hidden(folder):
    return [name for name in os.listdir(folder) if name[0] == "."]


def test_training_goes_on_while_the_disk_is_waited_for(tmp_path, disk):
    model, ema = run()
    expected = [{name: average.clone() for name, average in ema.averages(width).items()} for width in ema.sigma_rel]
    paths = ema.snapshot(tmp_path, wait=False)
    for step in (2, 3, 4):
        train(model, ema, step)
    assert (times(tmp_path), len(hidden(tmp_path))) == ([], 2)
    disk.let()
    ema.wait_for_snapshots()
    assert (times(tmp_path), hidden(tmp_path)) == ([1, 1], [])
    for path, averages in zip(paths, expected, strict=True):
        assert all(torch.equal(tensor, averages[name]) for name, tensor in load_file(path).items())


def test_no_average_has_its_name_before_all_are_on_the_disk(tmp_path, disk):
    _, ema = run()
    ema.snapshot(tmp_path, wait=False)
    disk.let(1)
    disk.is_asked(2)
    assert times(tmp_path) == []
    disk.let(2)
    ema.wait_for_snapshots()
    assert times(tmp_path) == [1, 1]


def test_waiting_with_nothing_under_way_returns_at_once(tmp_path, disk):
    _, ema = run()
    ema.wait_for_snapshots()
    ema.snapshot(tmp_path, wait=False)
    disk.let()
    ema.wait_for_snapshots()
    ema.wait_for_snapshots()


def test_a_wait_that_is_interrupted_can_be_taken_up_again(tmp_path, disk):
    _, ema = run()
    ema.snapshot(tmp_path, wait=False)
    threading.Timer(0.05, signal.pthread_kill, [threading.main_thread().ident, signal.SIGINT]).start()
    with pytest.raises(KeyboardInterrupt):
        ema.wait_for_snapshots()
    disk.let(after=0.05)
    ema.wait_for_snapshots()
    assert times(tmp_path) == [1, 1]


def test_the_next_snapshot_finishes_the_one_before(tmp_path, disk):
    model, ema = run()
    ema.snapshot(tmp_path, wait=False)
    train(model, ema, 2)
    disk.let(after=0.05)
    ema.snapshot(tmp_path, wait=False)
    assert (times(tmp_path), len(hidden(tmp_path))) == ([1, 1], 2)
    disk.let()
    ema.wait_for_snapshots()
    assert times(tmp_path) == [1, 1, 2, 2]


@pytest.mark.parametrize("wait", [True, False])
def test_the_same_step_while_it_is_under_way_is_written_once(tmp_path, disk, wait):
    _, ema = run()
    paths = ema.snapshot(tmp_path, wait=False)
    disk.let(after=0.05)
    assert ema.snapshot(tmp_path, wait=wait) == paths
    ema.wait_for_snapshots()
    assert disk.num_waited == A_SNAPSHOT
    assert times(tmp_path) == [1, 1]


def snapshot(ema, folder):
    ema.snapshot(folder, wait=False)


def wait(ema, folder):
    ema.wait_for_snapshots()


def state(ema, folder):
    ema.state_dict()


@pytest.mark.parametrize("told", [snapshot, wait, state], ids=lambda f: f.__name__)
def test_an_error_on_the_way_is_told_once_with_the_name_and_nothing_is_left(tmp_path, disk, told):
    model, ema = run()
    path = ema.snapshot(tmp_path, wait=False)[0]
    train(model, ema, 2)
    disk.is_broken = True
    disk.let()
    with pytest.raises(OSError, match=f"Input/output error; no part of the file is left.*{path.name}"):
        told(ema, tmp_path)
    assert os.listdir(tmp_path) == []
    disk.is_broken = False
    disk.let_all()
    ema.snapshot(tmp_path)
    assert times(tmp_path) == [2, 2]


def test_a_folder_that_does_not_reach_the_disk_is_an_error_that_takes_the_names_back(tmp_path, disk):
    _, ema = run()
    ema.snapshot(tmp_path, wait=False)
    disk.let(2)
    disk.is_asked(3)
    assert times(tmp_path) == [1, 1]
    disk.is_broken = True
    disk.let(1)
    with pytest.raises(OSError, match=f"Input/output error.*{tmp_path}"):
        ema.wait_for_snapshots()
    assert os.listdir(tmp_path) == []


def test_a_name_that_is_taken_meanwhile_is_an_error_and_the_other_average_gets_none_either(tmp_path, disk):
    _, ema = run()
    paths = ema.snapshot(tmp_path, wait=False)
    paths[1].write_bytes(b"of somebody else")
    disk.let()
    disk.settle()
    assert os.listdir(tmp_path) == [paths[1].name]
    with pytest.raises(FileExistsError, match=f"{paths[1].name} exists already; it was not overwritten"):
        ema.wait_for_snapshots()
    assert paths[1].read_bytes() == b"of somebody else"


def test_a_checkpoint_of_accelerate_does_not_come_before_its_snapshots(tmp_path, disk):
    model, ema = run()
    try:
        accelerator = accelerate_ext.Accelerator(cpu=True)
        accelerator.prepare(model)
        accelerator.register_average(ema)
        ema.snapshot(tmp_path / "snapshots", wait=False)
        assert times(tmp_path / "snapshots") == []
        disk.let_all()
        accelerator.save_state(str(tmp_path / "checkpoint"))
    finally:
        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()
        PartialState._reset_state()
    assert times(tmp_path / "snapshots") == [1, 1]


def test_loading_waits_so_that_a_snapshot_of_the_course_that_is_given_up_cannot_come_later(tmp_path, disk):
    model, ema = run()
    early = copy.deepcopy(ema.state_dict())
    train(model, ema, 2)
    ema.snapshot(tmp_path, wait=False)
    disk.let(after=0.05)
    ema.load_state_dict(early)
    assert times(tmp_path) == [2, 2]
    disk.let_all()
    ema.snapshot(tmp_path)
    assert [each.t for each in list_snapshots(tmp_path)] == [1, 1]


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda ema: pickle.loads(pickle.dumps(ema))])
def test_a_copy_has_nothing_under_way_and_leaves_the_file_of_the_other_alone(tmp_path, disk, duplicate):
    _, ema = run()
    paths = ema.snapshot(tmp_path, wait=False)
    other = duplicate(ema)
    other.wait_for_snapshots()
    assert times(tmp_path) == []
    disk.let(after=0.05)
    assert other.snapshot(tmp_path, wait=False) == paths
    assert disk.num_waited == A_SNAPSHOT
    assert [each.t for each in list_snapshots(tmp_path)] == [1, 1]


def test_a_run_that_takes_over_a_folder_waits_for_what_is_under_way_there(tmp_path, disk):
    model, ema = run(run="a")
    ema.snapshot(tmp_path, wait=False)
    other = PostHocEMA(model, run="b", plan=plan(100, 2), directory=tmp_path, set_aside=True)
    disk.let(after=0.2)
    other.update(1)
    assert times(tmp_path / "set-aside" / "1") == [1, 1]
    ema.wait_for_snapshots()
    assert os.listdir(tmp_path) == ["set-aside"]


@pytest.mark.parametrize("reader", [list_snapshots, find_sources])
def test_who_reads_the_folder_in_the_same_process_finds_the_last_snapshot(tmp_path, disk, reader):
    _, ema = run()
    ema.snapshot(tmp_path, wait=False)
    disk.let(after=0.05)
    assert len(reader(tmp_path)) == 2


def test_two_averages_with_folders_of_their_own_do_not_wait_for_each_other(tmp_path, disk):
    (_, one), (_, other) = run(), run()
    one.snapshot(tmp_path / "one", wait=False)
    other.snapshot(tmp_path / "other", wait=False)
    assert len(hidden(tmp_path / "one")) == len(hidden(tmp_path / "other")) == 2


def planned(folder, **arguments):
    return run(plan=plan(4, 2, sigma_rel=(0.05, 0.10), spacing="even"), directory=folder, **arguments)


def test_a_planned_snapshot_is_waited_for_unless_the_run_says_otherwise(tmp_path, disk):
    model, ema = planned(tmp_path / "waiting")
    disk.let(after=0.05)
    train(model, ema, 2)
    assert times(tmp_path / "waiting") == [2, 2]
    model, ema = planned(tmp_path / "not", wait=False)
    train(model, ema, 2)
    train(model, ema, 3)
    assert (times(tmp_path / "not"), len(hidden(tmp_path / "not"))) == ([], 2)
    disk.let_all()
    train(model, ema, 4)
    ema.wait_for_snapshots()
    assert times(tmp_path / "not") == [2, 2, 4, 4]


def test_an_error_of_a_planned_snapshot_is_told_by_the_next_update_which_moves_nothing(tmp_path, disk):
    model, ema = planned(tmp_path, wait=False)
    train(model, ema, 2)
    disk.is_broken = True
    disk.let()
    disk.settle()
    with pytest.raises(OSError, match=r"Input/output error.*000000000002-0\.050000"):
        train(model, ema, 3)
    assert ema.t == 2
    disk.is_broken = False
    disk.let_all()
    train(model, ema, 4)
    ema.wait_for_snapshots()
    assert times(tmp_path) == [4, 4]


def test_the_trainer_ends_when_the_snapshots_are_on_the_disk(tmp_path, disk):
    transformers = pytest.importorskip("transformers", reason="needs the Trainer")
    config = transformers.GPT2Config(n_layer=1, n_embd=8, n_head=2, vocab_size=20, n_positions=8)
    model = transformers.GPT2LMHeadModel(config)
    ema = PostHocEMA(model, plan=plan(2, 1, sigma_rel=0.1), directory=tmp_path / "snapshots", wait=False)
    data = [{"input_ids": torch.arange(8), "labels": torch.arange(8)} for _ in range(4)]
    arguments = transformers.TrainingArguments(
        str(tmp_path), per_device_train_batch_size=2, max_steps=2, save_strategy="no", report_to=[], use_cpu=True
    )

    class AtTheEnd(transformers.TrainerCallback):
        def on_train_end(self, args, state, control, **kwargs):
            assert len(hidden(tmp_path / "snapshots")) == 1
            disk.let(after=0.05)

    callbacks = [AtTheEnd(), accelerate_ext.AppliedStepCallback(ema=ema)]
    transformers.Trainer(model, arguments, train_dataset=data, callbacks=callbacks).train()
    assert times(tmp_path / "snapshots") == [2]


ENDING = """
import _thread, contextlib, errno, os, signal, sys, threading, time, torch
from accelerate_ext.ema import PostHocEMA

folder, how = sys.argv[1:]
fsync = os.fsync


def slow(descriptor):
    time.sleep(0.2)
    if how.startswith("broken"):
        raise OSError(errno.EIO, "Input/output error")
    if how == "killed":
        print("under way", flush=True)
        time.sleep(60)
    fsync(descriptor)


ema = PostHocEMA(torch.nn.Linear(2, 1), run="a")
ema.update(1)
ema.snapshot(folder)
os.fsync = slow
ema.update(2)
ema.snapshot(folder, wait=False)
print("the script has ended", flush=True)
if how == "raises":
    raise KeyError("of the script")
if how == "broken, and told":
    with contextlib.suppress(OSError):
        ema.wait_for_snapshots()
if how == "is interrupted":
    _thread.interrupt_main()
if how == "is interrupted while it waits":
    threading.Timer(0.1, signal.pthread_kill, [threading.main_thread().ident, signal.SIGINT]).start()
    ema.wait_for_snapshots()
if how == "forks" and os.fork() == 0:
    ema.wait_for_snapshots()
    sys.exit()
"""


def ending(folder, how):
    command = [sys.executable, "-c", ENDING, str(folder), how]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.processes
@pytest.mark.xdist_group("ema-processes")
@pytest.mark.parametrize("how", ["ends", "raises", "is interrupted", "is interrupted while it waits", "forks"])
def test_a_process_that_ends_brings_its_snapshot_to_the_disk_first(tmp_path, how):
    process = ending(tmp_path, how)
    _, errors = process.communicate(timeout=300)
    assert [each.t for each in list_snapshots(tmp_path)] == [1, 1, 2, 2], errors
    assert ("of the script" in errors) == (how == "raises")
    assert ("KeyboardInterrupt" in errors) == ("interrupted" in how)
    assert bool(process.returncode) == (how not in ("ends", "forks"))
    assert hidden(tmp_path) == []


@pytest.mark.processes
@pytest.mark.xdist_group("ema-processes")
@pytest.mark.parametrize("how", ["broken", "broken, and told"])
def test_a_process_that_ends_says_that_its_snapshot_failed_unless_it_was_told(tmp_path, how):
    output, errors = ending(tmp_path, how).communicate(timeout=300)
    assert output == "the script has ended\n"
    for words in ("Input/output error", "000000000002-0.050000.safetensors"):
        assert (words in errors) == (how == "broken")
    assert (times(tmp_path), hidden(tmp_path)) == ([1, 1], [])


@pytest.mark.processes
@pytest.mark.xdist_group("ema-processes")
def test_a_run_that_is_killed_with_a_snapshot_under_way_leaves_only_whole_ones(tmp_path):
    process = ending(tmp_path, "killed")
    assert process.stdout is not None
    assert {process.stdout.readline(), process.stdout.readline()} == {"under way\n", "the script has ended\n"}
    process.kill()
    process.communicate()
    assert (times(tmp_path), len(hidden(tmp_path))) == ([1, 1], 2)
    assert all(load_file(each.path) for each in list_snapshots(tmp_path))
    ema = PostHocEMA(nn.Linear(2, 1), run="a")
    ema.update(1)
    ema.snapshot(tmp_path)
    assert hidden(tmp_path) == []
