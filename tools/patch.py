"""A patch before it is written down: which files it changes, from what to what, and the words that go with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from .site import Site


class Tree(Protocol):
    """The files of an upstream at one commit or release. Paths are relative to its root, with `/`."""

    base: str  # full commit id, or a release such as "5.24.0"
    date: str  # RFC 2822; the commit's date, or a release's upload date: never the clock
    is_exact: bool  # False on a drifted fork: a recipe then refuses, and says so, instead of raising

    def read(self, path: str) -> bytes:
        """The bytes of a file. Raises: FileNotFoundError."""
        ...

    def mode(self, path: str) -> str:
        """The file's mode as git writes it, "100644" or "100755"."""
        ...

    def paths(self, *globs: str) -> list[str]:
        """All files that match any of the globs, sorted. `**/` stands for any number of folders."""
        ...


@dataclass(frozen=True)
class Change:
    """One file of a patch; both sides are whole files."""

    before: bytes
    after: bytes


@dataclass(frozen=True)
class Patch:
    """One commit to be. `name` becomes the file's stem behind its number; `body` is wrapped at 72 columns."""

    name: str
    subject: str
    body: str
    changes: Mapping[str, Change]
    sites: Mapping[str, tuple[Site, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Series:
    """An ordered list of patches, each on top of the one before, and what a person needs to write the PR."""

    name: str
    patches: tuple[Patch, ...]
    notes: str  # Markdown facts for NOTES.md: what was observed, what was left out and why, commands and output
    refused: Mapping[str, tuple[Site, ...]] = field(default_factory=dict)  # path -> sites that were left alone
