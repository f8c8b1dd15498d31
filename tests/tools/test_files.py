"""Files are found once each and written together."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tools.errors import CannotRun
from tools.files import python_files, shown, write_all


def test_folders_are_searched_but_for_hidden_ones(tmp_path):
    for name in ("b.py", "a.py", "sub/c.py", ".venv/d.py", "sub/__pycache__/e.py", "f.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    found = python_files([tmp_path, tmp_path / "a.py", tmp_path / "f.txt"])
    assert [path.relative_to(tmp_path).as_posix() for path in found] == ["a.py", "b.py", "sub/c.py", "f.txt"]


def test_a_pipe_in_a_folder_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / ".hidden.py").write_text("")
    (tmp_path / "a.py").write_text("")
    assert python_files([tmp_path]) == [tmp_path / "a.py"]


def test_all_missing_paths_are_named(tmp_path):
    with pytest.raises(CannotRun, match=r"one\.py, .*two\.py"):
        python_files([tmp_path / "one.py", tmp_path, tmp_path / "two.py"])


def test_a_folder_without_a_python_file_is_no_quiet_success(tmp_path):
    (tmp_path / "a.txt").touch()
    with pytest.raises(CannotRun, match="there is none in"):
        python_files([tmp_path])


def test_modes_and_links_stay(tmp_path):
    target, link = tmp_path / "run.py", tmp_path / "link.py"
    target.write_bytes(b"a")
    target.chmod(0o755)
    link.symlink_to(target)
    write_all({link: b"b"})
    assert link.is_symlink()
    assert target.read_bytes() == b"b"
    assert target.stat().st_mode & 0o777 == 0o755
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.py", "run.py"]


def test_nothing_is_written_if_one_file_cannot_be(tmp_path):
    fine, gone = tmp_path / "fine.py", tmp_path / "gone.py"
    fine.write_bytes(b"a")
    with pytest.raises(CannotRun, match=r"nothing was written.*gone\.py: No such file"):
        write_all({fine: b"b", gone: b"b"})
    assert fine.read_bytes() == b"a"
    assert list(tmp_path.iterdir()) == [fine]


@pytest.mark.skipif(os.geteuid() == 0, reason="the administrator may write everywhere")
def test_a_read_only_file_is_not_replaced(tmp_path):
    path = tmp_path / "a.py"
    path.write_bytes(b"a")
    path.chmod(0o444)
    with pytest.raises(CannotRun, match="read-only"):
        write_all({path: b"b"})
    assert path.read_bytes() == b"a"


def test_a_diff_names_files_from_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert shown(Path("x") / ".." / "a.py") == "a.py"
    assert shown(tmp_path / "sub" / "a.py") == "sub/a.py"
    assert shown(tmp_path.parent / "a.py") == (tmp_path.parent / "a.py").as_posix().lstrip("/")


def test_a_file_behind_a_link_keeps_the_name_that_the_user_typed(tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "a.py").touch()
    (tmp_path / "here" / "sub").mkdir(parents=True)
    (tmp_path / "here" / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "here" / "name.py").symlink_to("sub/b.py")
    monkeypatch.chdir(tmp_path / "here")
    assert shown(Path("link") / "a.py") == "link/a.py"
    assert shown(Path("link") / ".." / "elsewhere" / "a.py") == (tmp_path / "elsewhere/a.py").as_posix().lstrip("/")
    assert shown(Path("name.py")) == "sub/b.py"


def test_a_file_that_cannot_be_written_to_the_end_leaves_nothing_beside_it(tmp_path, monkeypatch):
    one, other = tmp_path / "one.py", tmp_path / "other.py"
    for path in (one, other):
        path.write_bytes(b"before")

    def full(path, mode):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "chmod", full)
    with pytest.raises(CannotRun, match=r"nothing was written.*one\.py: No space left on device; .*other\.py"):
        write_all({one: b"after", other: b"after"})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.py", "other.py"]
    assert one.read_bytes() == b"before"
