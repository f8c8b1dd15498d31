"""From a source to a series: open the source, run the recipe, prove that what came out applies, write it down."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from . import series as store
from .catalog import Upstream, cache_folder, patches_folder
from .checkout import GitTree, fetch_commit, scratch
from .errors import CannotRun, Unavailable
from .patch import Series, Tree
from .release import WheelTree, open_release
from .trees import misplaced, on_top


@dataclass(frozen=True)
class Generated:
    """A series and those that it stands on, first to last, made from one tree."""

    upstream: Upstream
    tree: Tree
    chain: tuple[Series, ...]

    @property
    def series(self) -> Series:
        """The one that was asked for."""
        return self.chain[-1]

    def rendered(self, *, context: int) -> dict[str, bytes]:
        """The files of the series that was asked for."""
        return store.render(self.upstream, self.tree, self.series, context=context)

    def patches(self, *, context: int) -> list[bytes]:
        """The patches of the whole chain in the order in which they apply."""
        rendered = [store.render(self.upstream, self.tree, part, context=context) for part in self.chain]
        return [files[name] for files in rendered for name in store.order(files)]

    def touched(self) -> list[str]:
        """All paths that some patch of the chain changes, sorted."""
        return sorted({path for part in self.chain for patch in part.patches for path in patch.changes})


def open_source(upstream: Upstream, source: Path | None = None, base: str | None = None) -> GitTree | WheelTree:
    """The tree to work from: a checkout or a wheel if one is named, otherwise where the catalogue says.

    Without `base` this is the pinned commit or release; in a checkout of a released package it is HEAD.
    Raises: Unavailable if the source cannot be had. CannotRun if what was named is not there or does not fit.
    """
    if source and source.suffix == ".whl":
        if base:
            raise CannotRun("--base must be left out when --source is a wheel: a wheel is one release")
        return WheelTree(source, upstream.root, base=upstream.base)
    if source:
        return GitTree(source, base or ("HEAD" if upstream.is_release else upstream.base), upstream.base)
    if upstream.is_release:
        return open_release(upstream, base)
    return GitTree(_checkout(upstream), base or upstream.base, upstream.base)


def _checkout(upstream: Upstream) -> Path:
    """The checkout that the environment names, or the pinned commit fetched into the cache."""
    named = os.environ.get(upstream.checkout_variable)
    if named:
        return Path(named)
    try:
        return fetch_commit(upstream.url, upstream.base, cache_folder() / "upstreams" / upstream.name)
    except Unavailable as error:
        raise Unavailable(
            f"{upstream.name} needs a checkout: give --source, or set {upstream.checkout_variable} to one. {error}"
        ) from error


def generate(upstream: Upstream, tree: Tree, name: str | None = None) -> Generated:
    """The series `name` (the default one without a name), each part of its chain built on the one before.

    Raises: CannotRun if there is no such series.
    """
    name, _ = upstream.recipe(name)
    parts: list[Series] = []
    current = tree
    for part in upstream.chain(name):
        parts.append(upstream.recipe(part)[1](current))
        faults = misplaced(current, parts[-1].patches)
        if faults:
            raise RuntimeError(f"the recipe of {upstream.name}/{part} is wrong: " + "; ".join(faults))
        current = on_top(current, parts[-1])
    return Generated(upstream, tree, tuple(parts))


def record(made: Generated) -> Path:
    """Writes the committed form under `patches/` and returns its folder.

    Raises: CannotRun if the source is not the pinned base, the upstream is one whose patches are not committed, or
        the folder cannot be written.
    """
    if not made.upstream.is_committed:
        raise CannotRun(f"the patches of {made.upstream.name} are not committed: its row in upstreams.toml has no url")
    if not made.tree.is_exact:
        raise CannotRun(
            f"only the pinned base of {made.upstream.name}, {made.upstream.base}, is recorded, got {made.tree.base}; "
            "change the base in patches/upstreams.toml first"
        )
    files = made.rendered(context=0)
    faults = store.lint(files, context=0)
    if faults:
        raise RuntimeError("the series must not be recorded: " + "; ".join(faults))
    folder = store.folder_of(patches_folder(), made.upstream.name, made.tree.base, made.series.name)
    store.write(folder, files)
    return folder


def export(made: Generated, out: Path) -> Path:
    """Writes the mails, with three lines of context, under `out` and returns their folder.

    Raises: CannotRun if the folder cannot be written or holds something else.
    """
    folder = store.folder_of(out, made.upstream.name, made.tree.base, made.series.name)
    store.write(folder, made.rendered(context=3))
    return folder


def prove(made: Generated) -> str:
    """Applies both forms of the whole chain to a clean copy of the files and returns the tree that both give.

    Raises: CannotRun if one does not apply, or if they do not give what the recipe means.
    """
    files = {path: (made.tree.mode(path), made.tree.read(path)) for path in made.touched()}
    wanted = {
        path: change.after for part in made.chain for patch in part.patches for path, change in patch.changes.items()
    }
    with scratch(files, made.tree.date) as clean:
        for diff in made.patches(context=0):
            clean.apply_exactly(diff)
        tree = clean.tree()
        clean.reset()
        clean.commit_mails(made.patches(context=3))
        different = [path for path, data in wanted.items() if (clean.root / path).read_bytes() != data]
        if different or clean.tree() != tree:
            raise CannotRun(f"the patches of {made.upstream.name} do not give what they should in {different or tree}")
    return tree
