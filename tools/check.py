"""Committed series against what the tools would write today and against a clean tree."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from . import series as store
from .catalog import Upstream
from .checkout import GitError, scratch
from .diff import blob_id
from .errors import CannotRun
from .generate import Generated, generate, prove
from .patch import Patch, Tree
from .site import Outcome
from .trees import on_top

_FILE = re.compile(rb"^diff --git a/(.+) b/\1\nindex ([0-9a-f]{40})\.\.([0-9a-f]{40})", re.MULTILINE)


FORMAT = "applied-updates.check/1"


class State(str, Enum):
    """How a committed patch stands to a source."""

    CURRENT = "current"  # what the tools write today, and it applies
    STALE = "stale"  # the tools write something else today: generate it again
    CONFLICT = "conflict"  # it does not apply, and no other one can be generated
    UPSTREAMED = "upstreamed"  # the change is in this source already


@dataclass(frozen=True)
class Verdict:
    """The state of one file of a series, and why."""

    upstream: str
    series: str
    file: str
    state: State
    message: str


def as_document(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """The JSON document (schemas/check.schema.json), ready to be dumped."""
    return {"format": FORMAT, "verdicts": [vars(verdict) | {"state": verdict.state.value} for verdict in verdicts]}


def check(upstream: Upstream, tree: Tree, folder: Path) -> list[Verdict]:
    """The state of every committed patch of an upstream (`folder` is `patches/`) against a tree.

    On the pinned base all bytes must be what the tools write today. On another commit or release a patch is current
    if it fits as it is, and stale if only a newly generated one does.
    Raises: CannotRun if a committed series cannot be read, or if the upstream has none.
    """
    if not upstream.is_committed:
        raise CannotRun(
            f"the patches of {upstream.name} are made where they are needed and not committed; generate them"
        )
    verdicts = []
    base = folder / upstream.name / upstream.base
    for stray in sorted(path.name for path in base.glob("*") if path.name not in upstream.series):
        verdicts.append(Verdict(upstream.name, stray, store.ORDER, State.STALE, "not in the catalogue: remove it"))
    for name in upstream.series:
        place = store.folder_of(folder, upstream.name, upstream.base, name)
        if not (place / store.ORDER).is_file():
            message = f"not recorded: python -m tools generate {upstream.name} --all --record"
            verdicts.append(Verdict(upstream.name, name, store.ORDER, State.STALE, message))
            continue
        made = generate(upstream, tree, name)
        judge = _on_base if tree.is_exact else _elsewhere
        found = judge(made, store.read(place))
        verdicts += [Verdict(upstream.name, name, file, state, message) for file, state, message in found]
    return verdicts


def _on_base(made: Generated, recorded: Mapping[str, bytes]) -> Iterator[tuple[str, State, str]]:
    """Byte for byte, and applied to a clean copy of the files."""
    fresh = made.rendered(context=0)
    conflicts = _conflicts(made, recorded)
    for name in sorted({*fresh, *recorded}):
        if name in conflicts:
            yield name, State.CONFLICT, conflicts[name]
        elif name not in fresh:
            yield name, State.STALE, "the tools no longer write this file: record the series again"
        elif name not in recorded:
            yield name, State.STALE, "the tools write this file today: record the series again"
        elif fresh[name] != recorded[name]:
            line = _first_difference(fresh[name], recorded[name])
            yield name, State.STALE, f"differs from line {line} on from what the tools write: record the series again"
        elif name.endswith(".patch"):
            yield name, State.CURRENT, "the same bytes, and it applies"
    if fresh == recorded:
        prove(made)


def _conflicts(made: Generated, recorded: Mapping[str, bytes]) -> dict[str, str]:
    """Recorded patches that do not apply to a clean copy on which the series below them were applied."""
    names = [name for name in store.order(recorded) if name in recorded]
    below = Generated(made.upstream, made.tree, made.chain[:-1]) if len(made.chain) > 1 else None
    touched = {path.decode() for name in names for path, _, _ in _FILE.findall(recorded[name])} | set(made.touched())
    known = set(made.tree.paths("**"))
    files = {path: (made.tree.mode(path), made.tree.read(path)) for path in sorted(touched & known)}
    conflicts = {}
    with scratch(files, made.tree.date) as clean:
        for diff in below.patches(context=0) if below else []:
            clean.apply_exactly(diff)
        for name in names:
            try:
                clean.apply_exactly(recorded[name])
            except GitError as error:
                conflicts[name] = f"does not apply: {error.said}"
    return conflicts


def _first_difference(one: bytes, other: bytes) -> int:
    lines = zip(one.split(b"\n"), other.split(b"\n"), strict=False)
    return next((number for number, (a, b) in enumerate(lines, 1) if a != b), one.count(b"\n") + 1)


def _elsewhere(made: Generated, recorded: Mapping[str, bytes]) -> Iterator[tuple[str, State, str]]:
    """On another commit or release: by blob id first, then by what the tools would write there."""
    fresh = {patch.name: patch for patch in made.series.patches}
    below: Tree = made.tree
    for part in made.chain[:-1]:
        below = on_top(below, part)
    present = set(below.paths("**"))
    blobs: dict[str, str] = {}
    for name in store.order(recorded):
        sides = [(path.decode(), old.decode(), new.decode()) for path, old, new in _FILE.findall(recorded[name])]
        missing = [path for path, _, _ in sides if path not in present]
        if missing:
            yield name, State.CONFLICT, f"this source has no {', '.join(missing)}"
            continue
        for path, _, _ in sides:
            blobs.setdefault(path, blob_id(below.read(path)))
        if all(blobs[path] == new for path, _, new in sides):
            yield name, State.UPSTREAMED, "this source holds the very text that the patch leads to"
        elif all(blobs[path] == old for path, old, _ in sides):
            blobs |= {path: new for path, _, new in sides}
            yield name, State.CURRENT, "the files are those of the pinned base: it fits as it is"
        else:
            yield name, *_moved_on(made, fresh.get(name[5:].removesuffix(".patch")), [path for path, _, _ in sides])


def _moved_on(made: Generated, patch: Patch | None, paths: list[str]) -> tuple[State, str]:
    """The state of a patch whose files have changed since it was recorded."""
    if patch:
        return State.STALE, "the files have changed; the patch that is generated from this source applies"
    sites = [site for path in paths for site in made.series.refused.get(path, ())]
    refused = [site for site in sites if site.outcome is Outcome.REFUSED]
    if refused:
        return State.CONFLICT, f"refused here, first at line {refused[0].line}: {refused[0].message}"
    if any(site.outcome is Outcome.RIGHT for site in sites):
        return State.UPSTREAMED, "this source counts applied updates already"
    return State.CONFLICT, "nothing to change was found in this source"
