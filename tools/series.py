"""A series on disk: an order file, patches, report.json and NOTES.md. Read, written in one move, held to rules."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from .catalog import Upstream
from .errors import CannotRun
from .mail import Envelope, format_mail
from .notes import notes
from .patch import Series, Tree
from .report import FileReport, as_json, document

ORDER = "series"
REPORT = "report.json"
NOTES = "NOTES.md"
_HUNK = re.compile(rb"@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@$")
_INDEX = re.compile(rb"index [0-9a-f]{40}\.\.[0-9a-f]{40} 100(?:644|755)$")


def render(upstream: Upstream, tree: Tree, series: Series, *, context: int) -> dict[str, bytes]:
    """All files of the series' folder by name: the same input gives the same bytes."""
    base = tree.base if is_commit(tree.base) else f"v{tree.base}"  # a release's tag, as all these upstreams name it
    envelope = Envelope(upstream.author, tree.date, f"Base-Commit: {base}")
    total = len(series.patches)
    patches = {
        file_name(number, patch.name): format_mail(
            patch, envelope, number, total, context=context, modes={path: tree.mode(path) for path in patch.changes}
        )
        for number, patch in enumerate(series.patches, 1)
    }
    about = {"upstream": upstream.name, "base": tree.base, "series": series.name}
    return {
        ORDER: "".join(f"{name}\n" for name in patches).encode(),
        **patches,
        REPORT: as_json(document(file_reports(series), **about)).encode(),
        NOTES: notes(upstream, tree, series, list(patches)).encode(),
    }


def is_commit(base: str) -> bool:
    """Whether a base is a commit id and not a release."""
    return re.fullmatch(r"[0-9a-f]{40}", base) is not None


def file_name(number: int, name: str) -> str:
    """The file of a patch. Raises: ValueError if the name does not make a plain file name."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise ValueError(f"a patch's name must be of letters, digits, `.`, `_` and `-`, got {name!r}")
    return f"{number:04d}-{name}.patch"


def file_reports(series: Series) -> list[FileReport]:
    """What the series has to say about each file, sorted by path; a file in several patches has all their sites."""
    sites: dict[str, list] = {}
    for part in (*(patch.sites for patch in series.patches), series.refused):
        for path, found in part.items():
            sites.setdefault(path, []).extend(site for site in found if site not in sites.get(path, []))
    return [FileReport(path, tuple(sites[path])) for path in sorted(sites)]


def folder_of(root: Path, upstream: str, base: str, series: str) -> Path:
    """Where a series lies under `patches/` or an output folder."""
    return root / upstream / base / series


def read(folder: Path) -> dict[str, bytes]:
    """The files of a series' folder by name. Raises: CannotRun if it cannot be read."""
    try:
        return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}
    except OSError as error:
        raise CannotRun(f"{folder} must be the folder of a series: {error}") from error


def order(files: Mapping[str, bytes]) -> list[str]:
    """The patches' names, first to last. Raises: CannotRun if there is no order file."""
    if ORDER not in files:
        raise CannotRun(f"a series needs an order file named `{ORDER}`, one patch a line")
    return files[ORDER].decode().split()


def write(folder: Path, files: Mapping[str, bytes]) -> None:
    """Puts the files where an older series may be, all of them or none; what the older one had besides is gone.

    Raises: CannotRun if the folder holds something else than a series, or cannot be written.
    """
    if folder.is_dir() and any(folder.iterdir()) and not (folder / ORDER).is_file():
        raise CannotRun(f"{folder} must be empty or hold a series, and it holds something else; name another --out")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}-"))
        try:
            for name, data in files.items():
                (fresh / name).write_bytes(data)
            fresh.chmod(0o755)
            _swap(fresh, folder)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    except OSError as error:
        raise CannotRun(f"the series could not be written to {folder}: {error.strerror or error}") from error


def _swap(fresh: Path, folder: Path) -> None:
    """The new folder takes the old one's place; the old one comes back if that fails."""
    old = fresh.with_name(fresh.name + ".old")
    if folder.exists():
        os.rename(folder, old)
    try:
        os.rename(fresh, folder)
    except OSError:
        if old.exists():
            os.rename(old, folder)
        raise
    shutil.rmtree(old, ignore_errors=True)


def lint(files: Mapping[str, bytes], *, context: int) -> list[str]:
    """What is wrong with the files of a series, [] if nothing is. With `context` 0 no unchanged line may be there."""
    named = order(files)
    present = sorted(name for name in files if name.endswith(".patch"))
    faults = [f"{name} is in the order file and not there" for name in named if name not in files]
    faults += [f"{name} is not in the order file" for name in present if name not in named]
    faults += [f"{name} is missing" for name in (REPORT, NOTES) if name not in files]
    for name in present:
        faults += [f"{name}:{line}: {fault}" for line, fault in _lint_patch(files[name], context)]
    return faults


def _lint_patch(data: bytes, context: int) -> Iterator[tuple[int, str]]:
    lines = data.split(b"\n")
    head = data.split(b"\ndiff --git ", 1)[0]
    for wanted in (b"From: ", b"Date: ", b"Subject: [PATCH", b"Base-Commit: "):
        if b"\n" + wanted not in head:
            yield 1, f"the mail lacks `{wanted.decode()}...`"
    hunks = 0
    left = (0, 0)
    for number, line in enumerate(lines, 1):
        if left != (0, 0):
            sign = line[:1]
            if sign == b" " and not context:
                yield number, "a committed patch must not hold an unchanged line of the upstream"
            left = (left[0] - (sign in b" -" and sign != b""), left[1] - (sign in b" +" and sign != b""))
        elif line.startswith(b"index ") and not _INDEX.match(line):
            yield number, "a patch needs full blob ids and a mode"
        elif line.startswith(b"@@"):
            match = _HUNK.match(line)
            if not match:
                yield number, "a hunk's line must hold its ranges and nothing else"
                continue
            hunks += 1
            left = (int(match[1] or 1), int(match[2] or 1))
    if not hunks:
        yield len(lines), "the patch changes nothing"


def removed_lines(files: Mapping[str, bytes]) -> set[str]:
    """The upstream's own lines that the patches take away, without white space round them."""
    return {
        line[1:].decode(errors="replace").strip()
        for name, data in files.items()
        if name.endswith(".patch")
        for line in data.split(b"\n")
        if line.startswith(b"-") and not line.startswith(b"---")
    }
