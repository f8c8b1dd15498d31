"""Trees that stand on other trees: what a series left behind, for the next one to build on."""

from __future__ import annotations

from collections.abc import Mapping

from .checkout import matching
from .patch import Patch, Series, Tree


class Overlay:
    """A tree with some files replaced; everything else is as in the tree below."""

    def __init__(self, below: Tree, files: Mapping[str, bytes]) -> None:
        self._below = below
        self._files = dict(files)
        self.base = below.base
        self.date = below.date
        self.is_exact = below.is_exact

    def read(self, path: str) -> bytes:
        """The bytes of a file. Raises: FileNotFoundError."""
        return self._files[path] if path in self._files else self._below.read(path)

    def mode(self, path: str) -> str:
        """The file's mode as git writes it."""
        return self._below.mode(path)

    def paths(self, *globs: str) -> list[str]:
        """All files that match any of the globs, sorted."""
        return sorted({*self._below.paths(*globs), *matching(self._files, globs)})


def on_top(tree: Tree, series: Series) -> Overlay:
    """The tree as it is with a series applied."""
    files = {path: change.after for patch in series.patches for path, change in patch.changes.items()}
    return Overlay(tree, files)


def misplaced(tree: Tree, patches: tuple[Patch, ...]) -> list[str]:
    """Patches whose "before" is not what the tree and the patches before them leave; [] for a sound series."""
    files: dict[str, bytes] = {}
    faults = []
    for patch in patches:
        for path, change in patch.changes.items():
            if change.before != (files[path] if path in files else tree.read(path)):
                faults.append(f"{patch.name}: {path} is not what the tree and the patches before it leave")
            files[path] = change.after
    return faults
