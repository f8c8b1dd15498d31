"""Released packages: downloaded from the package index with pip, checked by hash, read without being installed."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tempfile
import zipfile
from datetime import datetime, timezone
from email.utils import format_datetime
from functools import cached_property
from pathlib import Path

from .catalog import Upstream, cache_folder
from .checkout import matching
from .errors import CannotRun, Unavailable


class WheelTree:
    """The files of a wheel (see `patch.Tree`), at the paths that they have in the upstream repository."""

    def __init__(self, wheel: Path, root: str = "", *, base: str = "", date: str = "") -> None:
        """`root` is the repository's folder that holds the package. The pinned release is `base`."""
        self.wheel = wheel
        self._prefix = f"{root.strip('/')}/" if root else ""
        self.base = version_of(wheel)
        self.is_exact = self.base == base
        try:
            self._archive = zipfile.ZipFile(wheel)
        except (OSError, zipfile.BadZipFile) as error:
            raise CannotRun(f"the source must be a wheel that can be opened, got {wheel}: {error}") from error
        self.date = date or self._newest()

    def __enter__(self) -> WheelTree:
        return self

    def __exit__(self, *_: object) -> None:
        self._archive.close()

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset(self._prefix + name for name in self._archive.namelist() if not name.endswith("/"))

    def _newest(self) -> str:
        """The date of the newest file, in the wheel's own words."""
        newest = max(info.date_time for info in self._archive.infolist())
        return format_datetime(datetime(*newest, tzinfo=timezone.utc))

    def read(self, path: str) -> bytes:
        """The bytes of a file. Raises: FileNotFoundError."""
        if path not in self._names:
            raise FileNotFoundError(f"{path} is not in {self.wheel.name}")
        return self._archive.read(path.removeprefix(self._prefix))

    def mode(self, path: str) -> str:
        """Plain for all files: a wheel does not keep what git knows."""
        return "100644"

    def paths(self, *globs: str) -> list[str]:
        """All files that match any of the globs, sorted; `**/` matches any number of folders."""
        return matching(self._names, globs)


def open_release(upstream: Upstream, version: str | None = None) -> WheelTree:
    """A release of an upstream, the pinned one without a version; its hash is checked where the catalogue has it.

    Raises: Unavailable if it cannot be downloaded. CannotRun if it is not the file that the catalogue means.
    """
    version = version or upstream.base
    wheel = download(upstream, version)
    known = upstream.releases.get(version)
    return WheelTree(wheel, upstream.root, base=upstream.base, date=known.date if known else "")


def download(upstream: Upstream, version: str | None) -> Path:
    """The wheel of a release, from the cache if it is there; the newest release without a version.

    Raises: Unavailable if it cannot be downloaded. CannotRun if its hash is not the one in the catalogue.
    """
    folder = cache_folder() / "releases"
    stem = upstream.distribution.replace("-", "_")
    cached = sorted(folder.glob(f"{stem}-{version}-*.whl")) if version else []
    wheel = cached[0] if cached else _pip_download(upstream.distribution, version, folder)
    known = upstream.releases.get(version_of(wheel))
    got = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if known and known.sha256 != got:
        wheel.unlink()
        raise CannotRun(
            f"{wheel.name} must have the sha256 {known.sha256}, got {got}; the file was removed. "
            "Run again; if that does not help, the package index serves something else than it did"
        )
    return wheel


def version_of(wheel: Path) -> str:
    """The version in a wheel's file name. Raises: CannotRun if it is not named as a wheel is."""
    parts = wheel.name.split("-")
    if wheel.suffix != ".whl" or len(parts) < 5:
        raise CannotRun(f"a released package must be a wheel (name-version-...-any.whl), got {wheel.name}")
    return parts[1]


def _pip_download(distribution: str, version: str | None, folder: Path) -> Path:
    """Downloads one wheel without what it depends on, and puts it into the folder in one move."""
    wanted = f"{distribution}=={version}" if version else distribution
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix="part-") as part:
        options = ["--no-deps", "--only-binary=:all:", "--no-input", "--quiet", "--disable-pip-version-check"]
        options += ["--ignore-requires-python"]  # it is read, not run
        command = [sys.executable, "-m", "pip", "download", *options, "--dest", part, wanted]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        wheels = sorted(Path(part).glob("*.whl"))
        if done.returncode != 0 or not wheels:
            said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()
            short = re.sub(r" \(from versions: .{40,}\)", "", " ".join(said[-2:]))
            raise Unavailable(f"{wanted} could not be downloaded with pip: {short}")
        return wheels[0].replace(folder / wheels[0].name)
