"""A step is one patch of a series, made of places; `series_of` makes a series of steps, or says what it refuses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..patch import Change, Patch, Series, Tree
from ..site import Outcome, Site
from ..source import Edit, Source, SourceError
from .shape import ShapeError

Read = Callable[[str], Source]


@dataclass(frozen=True)
class Placed:
    """An edit and what stands there, for reports."""

    path: str
    edit: Edit
    kind: str


@dataclass(frozen=True)
class Step:
    """One patch. Each of `places` finds one place and its edit, on its own, and raises ShapeError if it cannot."""

    name: str
    subject: str
    body: str
    places: tuple[Callable[[Read], Placed], ...]


def series_of(tree: Tree, name: str, steps: Sequence[Step], notes: str) -> Series:
    """The patches of all steps, each on top of the one before; if any place is refused, no patch and all refusals."""
    files: dict[str, Source] = {}

    def read(path: str) -> Source:
        if path not in files:
            files[path] = Source.from_bytes(tree.read(path))
        return files[path]

    patches, refused = [], dict[str, tuple[Site, ...]]()
    for step in steps:
        placed, refusals = _look(step, read)
        for path, sites in refusals.items():
            refused[path] = tuple(dict.fromkeys(refused.get(path, ()) + sites))
        if not refusals:
            patches.append(_patch(step, placed, files))
    return Series(name, () if refused else tuple(patches), notes, refused)


def refusal(step_name: str, message: str, line: int = 1) -> Site:
    """The site of a place that could not be found."""
    advice = "apply the series of a supported release and merge by hand (`git am -3`), or port this patch"
    return Site(line, 1, step_name, f"trainer-{step_name}", Outcome.REFUSED, f"{message}; {advice}")


def _look(step: Step, read: Read) -> tuple[list[Placed], dict[str, tuple[Site, ...]]]:
    placed: list[Placed] = []
    refused: dict[str, tuple[Site, ...]] = {}
    for place in step.places:
        seen: list[str] = []
        try:
            placed.append(place(_noting(read, seen)))
        except FileNotFoundError as error:
            path = str(seen[-1])
            refused[path] = (*refused.get(path, ()), refusal(step.name, f"the file must exist: {error}"))
        except (ShapeError, SourceError) as error:
            path, line = seen[-1], error.line or 1
            refused[path] = (*refused.get(path, ()), refusal(step.name, str(error), line))
    return placed, refused


def _noting(read: Read, seen: list[str]) -> Read:
    def noted(path: str) -> Source:
        seen.append(path)
        return read(path)

    return noted


def _patch(step: Step, placed: Sequence[Placed], files: dict[str, Source]) -> Patch:
    changes, sites = {}, {}
    for path, here in _by_path(placed).items():
        before = files[path]
        after = before.edited(place.edit for place in here)
        assert after.tree  # what does not parse must never become a patch
        sites[path] = tuple(_sites(step, here, before, after))
        changes[path] = Change(before.to_bytes(), after.to_bytes())
        files[path] = after
    return Patch(step.name, step.subject, step.body, changes, sites)


def _by_path(placed: Sequence[Placed]) -> Mapping[str, list[Placed]]:
    paths = dict.fromkeys(place.path for place in placed)
    return {path: sorted((p for p in placed if p.path == path), key=lambda p: p.edit) for path in paths}


def _sites(step: Step, placed: Sequence[Placed], before: Source, after: Source) -> Iterator[Site]:
    moved = 0
    for place in placed:
        edit = place.edit
        line = before.text.count("\n", 0, edit.start) + 1
        new_line = after.text.count("\n", 0, edit.start + moved) + 1
        yield Site(line, 1, place.kind, f"trainer-{step.name}", Outcome.REWRITTEN, step.subject, new_line)
        moved += len(edit.text) - (edit.end - edit.start)
