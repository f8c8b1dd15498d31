"""A checkpoint folder that appears whole or not at all, whenever the process is killed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

_INCOMING = "incoming"
_READY = ".ready"


class Staging:
    """Where a checkpoint is written before it takes the place of `target`.

    A new checkpoint is written to a hidden folder beside `target` (or in `beside`) and renamed. If `target` exists it
    may hold files of others, which stay: the checkpoint is then written to a hidden folder inside it, which is
    renamed when it is complete, and moved out entry by entry. Killed during the moves, `finish_interrupted` goes on
    from where they stopped; killed before, the old files are untouched.
    """

    def __init__(self, target: Path, beside: Path | None = None) -> None:
        self.target = target
        self._replaces = target.is_dir()
        if self._replaces:
            self.path = target / f".{_INCOMING}"
        else:
            self.path = (beside or target.parent) / f".{target.name}.{_INCOMING}"

    def begin(self) -> None:
        """Make the folder, empty. For one process; the others wait until it is there."""
        finish_interrupted(self.target)
        self.discard()
        try:
            self.path.mkdir(parents=True)
        except FileExistsError as error:
            raise FileExistsError(self._in_use("was made by another process at this moment")) from error

    def discard(self) -> None:
        """Remove what an interrupted save left behind."""
        if self.path.is_dir():
            shutil.rmtree(self.path)

    def _in_use(self, what: str) -> str:
        return (
            f"{self.path} {what}: another run seems to save to {self.target} too. Give each run a folder of its own; "
            "if no other run is left, save again, which removes what an interrupted save has left there"
        )

    def commit(self) -> None:
        """Put the complete checkpoint in its place. For one process, when all have written their files.

        Raises: FileNotFoundError if somebody else has taken the folder away meanwhile.
        """
        if not self.path.is_dir():
            raise FileNotFoundError(self._in_use("is gone"))
        flush_tree(self.path)
        if self._replaces:
            os.replace(self.path, self.target / _READY)
            flush_folder(self.target)
            finish_interrupted(self.target)
        else:
            self.target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(self.path, self.target)
            flush_folder(self.target.parent)


def finish_interrupted(target: Path) -> None:
    """Bring a save to its end that was complete when the process was killed. Does nothing when there is none."""
    ready = target / _READY
    if not ready.is_dir():
        return
    for entry in sorted(ready.iterdir()):
        place = target / entry.name
        if place.is_dir() and not place.is_symlink():
            shutil.rmtree(place)
        os.replace(entry, place)
    flush_folder(target)
    ready.rmdir()


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary file beside `path`, and rename it when it is on the disk."""
    temporary = path.with_name(f".{path.name}.{_INCOMING}")
    try:
        write(temporary)
        _flush(temporary)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    flush_folder(path.parent)


def flush_tree(folder: Path) -> None:
    """Make sure that every file under `folder` has reached the disk."""
    for root, _, files in os.walk(folder):
        for name in files:
            _flush(Path(root, name))
        flush_folder(Path(root))


def flush_folder(folder: Path) -> None:
    """Make sure that the names in `folder` have reached the disk, where the system can do that.

    Raises: OSError naming the folder.
    """
    if os.name == "posix":
        _flush(folder)


def _flush(path: Path) -> None:
    flags = os.O_RDONLY if os.name == "posix" else os.O_RDWR
    handle = os.open(path, flags)
    try:
        os.fsync(handle)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        os.close(handle)
