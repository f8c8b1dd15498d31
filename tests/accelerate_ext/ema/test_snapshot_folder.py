"""What a folder of snapshots may hold when a run goes on in it."""

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from accelerate_ext.ema.header import SnapshotError
from accelerate_ext.ema.snapshot_folder import Owner, claim, remove_leftovers

OWNER = Owner("run-1", (0.05, 0.1), "set-1", "updates")


def left_by(folder, writer) -> object:
    path = folder / f".000000000100-0.050000.safetensors.{writer}.tmp"
    path.touch()
    return path


def test_only_files_of_writers_that_are_gone_are_removed(tmp_path):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    mine, dead, odd = (left_by(tmp_path, writer) for writer in (os.getpid(), gone.pid, "editor"))
    remove_leftovers(tmp_path)
    assert (mine.exists(), dead.exists(), odd.exists()) == (True, False, True)


@pytest.mark.skipif(os.name != "posix" or os.getpid() == 1, reason="needs a process 1 that is another's")
def test_a_writer_that_may_not_be_asked_is_taken_for_alive(tmp_path, monkeypatch):
    def refuse(process, signal):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "kill", refuse)
    other = left_by(tmp_path, 1)
    remove_leftovers(tmp_path)
    assert other.exists()


def test_snapshots_that_count_something_else_are_refused_by_name_and_stay(known_run):
    path = known_run.save(800, 0.05, unit="images")
    known_run.save(800, 0.1)
    message = rf"{path.name}: its t counts images, this run counts updates"
    with pytest.raises(SnapshotError, match=message) as refused:
        claim(known_run.folder, OWNER, 1600)
    assert "0.100000" not in str(refused.value)
    assert len(list(known_run.folder.iterdir())) == 2


def test_a_folder_that_is_refused_stays_as_it_is_with_what_a_writer_of_another_machine_has_under_way(known_run):
    known_run.save(800, 0.05)
    under_way = left_by(known_run.folder, 2**22 + 1)  # a number that no process of this machine has
    with pytest.raises(SnapshotError, match="of the run 'run-1', this is 'run-2'"):
        claim(known_run.folder, replace(OWNER, run="run-2"), 0)
    assert under_way.exists()
    claim(known_run.folder, OWNER, 800)
    assert not under_way.exists()
