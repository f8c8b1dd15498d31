"""`patches/upstreams.toml`: which upstreams there are, where each is pinned, and which series it has."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from .errors import CannotRun
from .patch import Series, Tree

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PACKAGE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Release:
    """A released package: the hash that its wheel must have, and the day that patches made from it carry."""

    version: str
    sha256: str
    date: str  # RFC 2822


@dataclass(frozen=True)
class Upstream:
    """A row of the catalogue. Exactly one of `commit` and `distribution` says where the pinned text comes from."""

    name: str
    base: str  # full commit id, or a version
    globs: tuple[str, ...]
    series: tuple[str, ...]
    author: str  # "Name <address>"
    url: str = ""  # of the git repository
    distribution: str = ""  # of the package index
    root: str = ""  # the folder that holds the package in the upstream repository
    releases: Mapping[str, Release] = field(default_factory=dict)
    after: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # series -> those that it stands on

    @property
    def is_release(self) -> bool:
        """Whether the base is a release from the package index and not a commit."""
        return bool(self.distribution)

    @property
    def is_committed(self) -> bool:
        """Whether its series are kept under `patches/`; others are made where they are needed."""
        return bool(self.url)

    @property
    def checkout_variable(self) -> str:
        """The environment variable that names a git checkout of this upstream."""
        return f"{self.name.upper()}_CHECKOUT"

    def recipe(self, name: str | None) -> tuple[str, Callable[[Tree], Series]]:
        """A series' full name and what builds it; the upstream's default without a name.

        Raises: CannotRun if there is no such series.
        """
        module = importlib.import_module(f".upstreams.{self.name}", __package__)
        name = name or module.DEFAULT_SERIES
        if name not in module.SERIES:
            raise CannotRun(f"{self.name} has the series {', '.join(module.SERIES)}, got {name!r}")
        return name, module.SERIES[name]

    def chain(self, name: str) -> tuple[str, ...]:
        """The series to build for `name`: those that it stands on, in order, then itself."""
        return (*self.after.get(name, ()), name)


def patches_folder() -> Path:
    """Where the committed patches are: beside the package in a checkout, inside it when it was installed.

    Raises: CannotRun if neither is there.
    """
    for folder in (PACKAGE.parent / "patches", PACKAGE / "patches"):
        if (folder / "upstreams.toml").is_file():
            return folder
    raise CannotRun("`patches/upstreams.toml` must lie beside the tools or in their package; reinstall them")


def cache_folder() -> Path:
    """A folder for downloads that git ignores. It is made when something is first put there."""
    if (PACKAGE.parent / "patches" / "upstreams.toml").is_file():
        return PACKAGE.parent / ".cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "accelerate-ext"


def load(path: Path | None = None) -> dict[str, Upstream]:
    """All rows, in the file's order.

    Raises: CannotRun if the file does not say what it must, with all its faults.
    """
    path = path or patches_folder() / "upstreams.toml"
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CannotRun(f"{path} must be a readable TOML file: {error}") from error
    author = document.pop("author", {})
    faults = [f"[author] lacks `{key}`" for key in ("name", "email") if not author.get(key)]
    rows = {}
    for name, row in document.items():
        missing = [key for key in ("base", "globs", "series") if not row.get(key)]
        faults += [f"[{name}] lacks `{key}`" for key in missing]
        if not missing:
            rows[name] = _row(name, row, f"{author.get('name')} <{author.get('email')}>")
            faults += _faults(rows[name])
    if faults:
        raise CannotRun(f"{path}: " + "; ".join(faults))
    return rows


def find(name: str) -> Upstream:
    """One row. Raises: CannotRun, with the names that there are."""
    rows = load()
    if name not in rows:
        raise CannotRun(f"the upstream must be one of {', '.join(rows)}, got {name!r}")
    return rows[name]


def _row(name: str, row: dict, author: str) -> Upstream:
    releases = {
        version: Release(version, release["sha256"], release["date"])
        for version, release in row.get("releases", {}).items()
    }
    return Upstream(
        name=name,
        base=row["base"],
        globs=tuple(row["globs"]),
        series=tuple(row["series"]),
        author=author,
        url=row.get("url", ""),
        distribution=row.get("distribution", ""),
        root=row.get("root", ""),
        releases=releases,
        after={key: tuple(names) for key, names in row.get("after", {}).items()},
    )


def _faults(row: Upstream) -> list[str]:
    if row.is_release and row.base not in row.releases:
        return [f"[{row.name}] needs a hash and a date for its base {row.base}"]
    if not row.is_release and not row.url:
        return [f"[{row.name}] needs a `url` or a `distribution`"]
    unknown = [other for names in row.after.values() for other in names if other not in row.series]
    return [f"[{row.name}] puts a series after {other!r}, which it does not have" for other in unknown]
