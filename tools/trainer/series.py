"""The Trainer series: its steps in the order in which they are to be reviewed, and when there is nothing to do."""

from __future__ import annotations

import ast

from ..patch import Series, Tree
from ..site import Outcome, Site
from ..source import Source
from . import counter, end, epochs, gate, progress, resume, streams
from .notes import NOTES
from .paths import TRAINER
from .shape import ShapeError, method
from .step import Step, series_of

# What makes room and changes nothing comes first, the gate last.
STEPS: tuple[Step, ...] = (
    counter.STEP,
    resume.STEP,
    epochs.STEP,
    end.STEP,
    progress.STEP,
    streams.STEP,
    gate.STEP,
)


def build(tree: Tree) -> Series:
    """The patches, or none and the reasons: a place that was not found, or a Trainer that counts right already."""
    right = _counts_applied_updates(tree)
    if right is not None:
        return Series("transformers", (), NOTES, {TRAINER: (right,)})
    return series_of(tree, "transformers", STEPS, NOTES)


def _counts_applied_updates(tree: Tree) -> Site | None:
    """The place where `_run_epoch` asks for the skip flag before it fires `on_optimizer_step`, if it does."""
    try:
        scope = method(Source.from_bytes(tree.read(TRAINER)), "Trainer", "_run_epoch")
    except (FileNotFoundError, ShapeError):
        return None
    attributes = [node for node in ast.walk(scope) if isinstance(node, ast.Attribute)]
    flags = [node.lineno for node in attributes if node.attr == "optimizer_step_was_skipped"]
    events = [node.lineno for node in attributes if node.attr == "on_optimizer_step"]
    if not flags or not events or min(flags) > min(events):
        return None
    message = (
        "the skip flag is asked for before the step is counted: the series, or a change like it, is there already"
    )
    return Site(min(flags), 1, "optimizer step", "trainer-counted", Outcome.RIGHT, message)
