"""A copy of an installed package with some of its files replaced, to be put first on PYTHONPATH."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from ..patch import Series


def changed_files(series: Series) -> dict[str, bytes]:
    """What the series leaves in each file that it changes."""
    return {path: change.after for patch in series.patches for path, change in patch.changes.items()}


def patched_copy(package: Path, changes: Mapping[str, bytes], folder: Path, *, root: str = "src") -> Path:
    """Copy the package at `package` into `folder`; everything that is not changed is a link to the original.

    Args:
        package: the folder of the installed package; `changes` are relative to the one it stands in.
        changes: the new bytes, by path in the upstream repository, under `root` there.
        folder: where the copy is made; it must not hold the package yet.
    Returns: the folder to be put on PYTHONPATH. The copy has compiled files of its own.
    """
    prefix = f"{root}/{package.name}/"
    wrong = sorted(path for path in changes if not path.startswith(prefix))
    if wrong:
        raise ValueError(f"changed files must lie under {prefix}, got {', '.join(wrong)}")
    files = {path.removeprefix(prefix): data for path, data in changes.items()}
    missing = sorted(path for path in files if not (package / path).is_file())
    if missing:
        raise ValueError(f"{package} must have the files that are changed, it lacks {', '.join(missing)}")
    _mirror(package, files, folder / package.name)
    return folder


def _mirror(source: Path, files: Mapping[str, bytes], target: Path) -> None:
    target.mkdir(parents=True)
    for entry in sorted(source.iterdir()):
        below = {
            path.removeprefix(f"{entry.name}/"): data
            for path, data in files.items()
            if path.startswith(f"{entry.name}/")
        }
        if entry.name in files:
            (target / entry.name).write_bytes(files[entry.name])
        elif below:
            _mirror(entry, below, target / entry.name)
        elif entry.name != "__pycache__":
            _link(entry, target / entry.name)


def _link(source: Path, target: Path) -> None:
    try:
        target.symlink_to(source, target_is_directory=source.is_dir())
    except OSError:  # a system where links need a privilege
        (shutil.copytree if source.is_dir() else shutil.copyfile)(source, target)
