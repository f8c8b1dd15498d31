"""Bytes of a training script in, bytes that count applied updates out, with every place that was looked at."""

from __future__ import annotations

import gc
import symtable
from collections.abc import Sequence
from dataclasses import dataclass, replace

from .compare import unaccounted
from .loop.flow import STEP
from .options import Options
from .rules import RULES
from .site import Outcome, Site
from .source import Edit, Source, SourceError
from .work import Rule, Work


@dataclass(frozen=True)
class Rewrite:
    """What became of a file. `before` and `after` are equal where nothing was to be done."""

    before: bytes
    after: bytes
    sites: tuple[Site, ...] = ()


def rewrite(source: bytes, options: Options | None = None, rules: Sequence[Rule] = RULES) -> Rewrite:
    """Make a script count applied updates, by these rules in this order. The bytes outside the edits stay as they are.

    After the edits the new text is parsed and its tree held against the old one; an edit that touched more than it
    meant to is taken back and reported as refused.

    Raises: SourceError if the bytes are not Python source.
    """
    text = Source.from_bytes(source)
    if not is_relevant(text.text):
        check_syntax(text)
        return Rewrite(source, source)
    was_collecting = gc.isenabled()
    gc.disable()  # a tree is hundreds of thousands of small objects, none of them garbage yet
    try:
        return _rewrite(source, Work(text, options or Options()), rules)
    finally:
        if was_collecting:
            gc.enable()


def is_relevant(text: str) -> bool:
    """Whether a text can hold a site: every rule needs one of the flags, or an attempt next to an accelerator."""
    if "sync_gradients" in text or "step_was_skipped" in text:
        return True
    return "ccelerat" in text and "backward" in text and STEP.search(text) is not None


def check_syntax(source: Source) -> None:
    """Raises: SourceError if the text does not parse. Builds no tree where that can be had."""
    try:
        symtable.symtable(source.text, "<source>", "exec")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        _ = source.tree  # what the compiler alone objects to is no error here


def _rewrite(data: bytes, work: Work, rules: Sequence[Rule]) -> Rewrite:
    try:
        for rule in rules:
            rule(work)
        return _applied(work, data)
    finally:
        work.script.release()


def _applied(work: Work, data: bytes) -> Rewrite:
    source = work.source
    sites = sorted(work.sites, key=lambda site: (site.line, site.col, site.code))
    if not work.edits:
        return Rewrite(data, data, tuple(sites))
    edits = sorted(work.edits, key=lambda edit: (edit.start, edit.end))
    try:
        after = source.edited(edits)
        faults = unaccounted(source, after, edits)
        encoded = after.to_bytes()
    except (ValueError, SourceError) as error:
        faults, encoded = [str(error)], data
    if faults:
        return Rewrite(data, data, tuple(_taken_back(site, faults[0]) for site in sites))
    return Rewrite(data, encoded, tuple(_moved(site, source, after, edits) for site in sites))


def _taken_back(site: Site, fault: str) -> Site:
    if site.outcome is not Outcome.REWRITTEN:
        return site
    message = f"the rewrite failed its own check ({fault}) and was taken back; please report it"
    return replace(site, code="internal", outcome=Outcome.REFUSED, message=message)


def _moved(site: Site, before: Source, after: Source, edits: list[Edit]) -> Site:
    if site.outcome is not Outcome.REWRITTEN:
        return site
    offset = before.line_starts[site.line - 1] + site.col - 1
    shift = sum(len(edit.text) - (edit.end - edit.start) for edit in edits if edit.start <= offset)
    return replace(site, new_line=after.line_at(offset + shift))


__all__ = ["Options", "Rewrite", "check_syntax", "is_relevant", "rewrite"]
