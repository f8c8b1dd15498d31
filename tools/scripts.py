"""Series of one patch a training script: each script is rewritten by itself, with facts about it in the message."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import PurePosixPath

from .patch import Change, Patch, Series, Tree
from .rewrite import rewrite
from .rules.epoch_budget import extend_epochs
from .site import Outcome, Site
from .source import Source, SourceError


@dataclass(frozen=True)
class Revision:
    """One script before and after, and what was found in it."""

    before: bytes
    after: bytes
    sites: tuple[Site, ...]


@dataclass(frozen=True)
class Kind:
    """What is done to every script of a series, and the words that go with it."""

    subject: str  # `{script}` stands for the script's name
    body: Callable[[str, Revision], str]
    revise: Callable[[bytes], Revision]


_EPOCHS = re.compile(rb"\brange\((?s:.*)\bbreak\b")  # nothing can be extended without both


@lru_cache(maxsize=512)  # several series ask for the same scripts
def gate(data: bytes) -> Revision:
    """The script as one that counts applied updates. Raises: SourceError."""
    result = rewrite(data)
    return Revision(result.before, result.after, tuple(result.sites))


def extend(data: bytes) -> Revision:
    """A gated script as one that takes the epochs it needs. Raises: SourceError."""
    if not _EPOCHS.search(data):
        return Revision(data, data, ())
    source = Source.from_bytes(data)
    edits, sites = extend_epochs(source)
    after = source.edited(edits)
    assert after.tree  # what does not parse must never become a patch
    return Revision(data, after.to_bytes(), tuple(sites))


def script_series(tree: Tree, name: str, kind: Kind, paths: Sequence[str], notes: str) -> Series:
    """A patch for each of the paths that changes. What was found in all the others stands under `refused`.

    A path that is missing, or does not parse, is refused.
    """
    names = short_names(paths)
    patches: list[Patch] = []
    others: dict[str, tuple[Site, ...]] = {}
    for path in paths:
        try:
            revision = kind.revise(tree.read(path))
        except FileNotFoundError:
            others[path] = (_refusal("missing-file", "the upstream has no such file here any more"),)
        except SourceError as error:
            others[path] = (_refusal("unreadable", str(error), error.line or 1, error.col or 1),)
        else:
            if revision.before == revision.after:
                others |= {path: revision.sites} if revision.sites else {}
            else:
                patches.append(_patch(path, names[path], kind, revision))
    return Series(name, tuple(patches), notes, others)


def short_names(paths: Iterable[str]) -> dict[str, str]:
    """A name for each path that no other has: its stem, with as many folders before it as it takes."""
    parts = {path: PurePosixPath(path).with_suffix("").parts for path in paths}
    names = {}
    for path, own in parts.items():
        num_own = next(
            (num for num in range(1, len(own)) if sum(other[-num:] == own[-num:] for other in parts.values()) == 1),
            len(own),
        )
        names[path] = "/".join(own[-num_own:])
    return names


def _patch(path: str, name: str, kind: Kind, revision: Revision) -> Patch:
    return Patch(
        name=re.sub(r"[^A-Za-z0-9._-]", "_", name.replace("/", "-")),
        subject=kind.subject.format(script=name + PurePosixPath(path).suffix),
        body=kind.body(path, revision),
        changes={path: Change(revision.before, revision.after)},
        sites={path: revision.sites},
    )


def _refusal(code: str, message: str, line: int = 1, col: int = 1) -> Site:
    return Site(line, col, "script", code, Outcome.REFUSED, message)


# What may move with the counter, as it is called in a message, and how it looks in a script.
_MOVES: Mapping[str, str] = {
    "EMA": r"\bema\w*(\.\w+)*\.step\(|\bupdate_ema\(",
    "`global_step`": r"\bglobal_step\w*\s*\+=|\bcompleted_steps\s*\+=",
    "the progress bar": r"\bprogress\w*\.update\(|\bpbar\.update\(",
    "the logged training loss": r"\btrain_loss\s*=\s*0",
    "checkpoints": r"\bsave_state\(|\bsave_pretrained\(",
}
_STEP_ASKED = re.compile(rb"step_was_skipped")


def moved(revision: Revision) -> list[str]:
    """What the gated blocks of a script move, in words: what follows the first question about the skip."""
    text = revision.after[_first_question(revision.after) :].decode("utf-8", "replace")
    return [what for what, pattern in _MOVES.items() if re.search(pattern, text, re.IGNORECASE)]


def _first_question(after: bytes) -> int:
    match = _STEP_ASKED.search(after)
    return match.start() if match else 0


def listed(words: Sequence[str]) -> str:
    """Words as English lists them."""
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + f" and {words[-1]}"


def codes(revision: Revision) -> Counter[str]:
    """How often each code stands for something that was rewritten."""
    return Counter(site.code for site in revision.sites if site.outcome is Outcome.REWRITTEN)
