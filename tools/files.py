"""Files that a user names: found, read, and written all together or not at all."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from .errors import CannotRun


def python_files(paths: Sequence[Path]) -> list[Path]:
    """The files named, and all `*.py` below the folders named but for hidden ones and pipes, each once and in order.

    Raises: CannotRun, with every path that is not there; or if there is no such file at all.
    """
    missing = [str(path) for path in paths if not path.exists()]
    if missing:
        raise CannotRun(f"each path must be a file or a folder that is there, these are not: {', '.join(missing)}")
    found: dict[Path, None] = {}
    for path in paths:
        found |= dict.fromkeys(_below(path) if path.is_dir() else [path])
    if not found:
        raise CannotRun(f"there must be a Python file to read, but there is none in {', '.join(map(str, paths))}")
    return list(found)


def _below(folder: Path) -> Iterable[Path]:
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name != "__pycache__")
        found = (Path(root, name) for name in sorted(names) if name.endswith(".py") and not name.startswith("."))
        yield from (path for path in found if path.is_file() or not path.exists())  # a pipe would never end


def write_all(contents: Mapping[Path, bytes]) -> None:
    """Replaces the contents of all files, or of none. A file's mode stays, and a link stays a link.

    Raises: CannotRun, with every file that cannot be written.
    """
    fresh: dict[Path, Path] = {}
    faults = []
    try:
        for path, data in contents.items():
            target = path.resolve()
            try:
                fresh[target] = _beside(target, data)
            except OSError as error:
                faults.append(f"{path}: {error.strerror}")
        if faults:
            raise CannotRun("nothing was written, because each file must be writable: " + "; ".join(faults))
        for target, temporary in fresh.items():
            os.replace(temporary, target)
    finally:
        for temporary in fresh.values():
            temporary.unlink(missing_ok=True)


def _beside(target: Path, data: bytes) -> Path:
    """A new file beside the target with its mode. Raises: OSError if the target may not be written."""
    mode = stat.S_IMODE(target.stat().st_mode)
    if not os.access(target, os.W_OK):
        raise PermissionError(13, "the file is read-only")
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.chmod(name, mode)
    except BaseException:
        os.unlink(name)
        raise
    return Path(name)


def shown(path: Path) -> str:
    """A path as it stands in a diff: relative to here if it lies below, or behind a link, else without its root."""
    here, target = Path.cwd(), path.resolve()
    typed = Path(os.path.normpath(here / path))
    for candidate, folder in ((target, here.resolve()), (typed, here)):
        if candidate.is_relative_to(folder) and candidate.resolve() == target:
            return candidate.relative_to(folder).as_posix()
    return target.relative_to(target.anchor).as_posix()
