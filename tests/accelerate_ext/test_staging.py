"""Files and folders that appear whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from accelerate_ext.staging import Staging, finish_interrupted, write_whole


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_complete_save_that_was_not_moved_is_finished(tmp_path):
    target = tmp_path / "checkpoint"
    (target / ".ready" / "sub").mkdir(parents=True)
    (target / "sub").mkdir()
    (target / "sub" / "old").write_text("old")
    (target / "model").write_text("old")
    (target / ".ready" / "model").write_text("new")
    (target / ".ready" / "sub" / "new").write_text("new")
    finish_interrupted(target)
    assert content(target) == {"model": b"new", "sub/new": b"new"}
    finish_interrupted(target)


def test_what_an_interrupted_save_left_is_removed_by_the_next(tmp_path):
    staging = Staging(tmp_path / "checkpoint")
    staging.begin()
    (staging.path / "half").write_text("half")
    again = Staging(tmp_path / "checkpoint")
    again.begin()
    (again.path / "whole").write_text("whole")
    again.commit()
    assert content(tmp_path) == {"checkpoint/whole": b"whole"}


def test_two_runs_that_save_to_one_folder_are_told(tmp_path, monkeypatch):
    first, second = Staging(tmp_path / "ckpt-10"), Staging(tmp_path / "ckpt-10")
    first.begin()
    monkeypatch.setattr(second, "discard", lambda: None)  # as if the other run made it behind this line
    said = r"\.ckpt-10\.incoming {}: another run seems to save to .*ckpt-10 too\. Give each run a folder of its own"
    with pytest.raises(FileExistsError, match=said.format("was made by another process at this moment")):
        second.begin()
    first.discard()
    with pytest.raises(FileNotFoundError, match=said.format("is gone")):
        first.commit()


def test_a_file_is_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "file"
    write_whole(path, lambda place: place.write_text("old"))

    def fail(place):
        place.write_text("half")
        raise KeyError

    with pytest.raises(KeyError):
        write_whole(path, fail)
    assert path.read_text() == "old"


def test_a_write_that_fails_leaves_no_part_of_a_file(tmp_path):
    def fails(path):
        path.write_text("half")
        raise OSError("no space")

    with pytest.raises(OSError, match="no space"):
        write_whole(tmp_path / "file", fails)
    assert not list(tmp_path.iterdir())
