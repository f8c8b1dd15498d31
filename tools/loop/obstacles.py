"""What keeps a flag from telling whether an update was applied, each with its code and its reason."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

from .names import class_of
from .objects import Identity
from .paths import Path, StepSite
from .tree import walk


@dataclass(frozen=True)
class Refusal:
    """Why a place is left alone: a stable code and a reason."""

    code: str
    message: str


def unusable(paths: list[Path], sites: list[StepSite]) -> Refusal | None:
    """Why no flag can tell about these steps, or None."""
    if not sites:
        return Refusal("no-step", "no optimizer step comes before this in the iteration")
    unseen = _unseen(sites)
    if unseen is not None:
        return unseen
    many = [site for site in sites if site.is_many]
    if many:
        return Refusal(
            "several-optimizers",
            f"line {many[0].statement.lineno} steps several optimizers in a loop; each may be "
            "skipped alone, so no single flag says whether the update happened. Count in that loop, each by its own "
            "`step_was_skipped`",
        )
    if any(path.is_looped for path in paths):
        return Refusal(
            "step-in-inner-loop",
            f"the step of line {sites[0].statement.lineno} runs in an inner loop; after it the flag tells only "
            "about the last of its attempts. Count in the inner loop, under its flag",
        )
    return None


def _unseen(sites: list[StepSite]) -> Refusal | None:
    """Why accelerate does not see whether these steps were made, or None."""
    first = sites[0]
    line = first.statement.lineno
    if any(site.kind == "engine" for site in sites):
        return Refusal(
            "engine-step",
            f"`{first.owner}.step()` (line {line}) belongs to an engine; it keeps its own "
            "count of skipped updates (`engine.skipped_steps`) and accelerate's flag does "
            "not see it",
        )
    if any(site.kind == "scaler" for site in sites):
        return Refusal(
            "own-grad-scaler",
            f"line {line} steps through a GradScaler of the script's own; accelerate's flag "
            "never sees it. Compare `scaler.get_scale()` before and after `update()` instead",
        )
    lomo = [site for site in sites if _updates_in_backward(site.who)]
    if lomo:
        return Refusal(
            "step-in-hook",
            f"`{lomo[0].owner}` updates the weights during backward(); its step() does "
            "nothing and always reports no skip: fused backward pass, no single "
            "applied/skipped answer",
        )
    return None


def _updates_in_backward(who: Identity) -> bool:
    """Whether an optimizer is one of those whose `step` does nothing."""
    values = [item.value for item in who.scope.bindings.get(who.key, [])]
    calls = [item for value in values if value is not None for item in walk(value) if isinstance(item, ast.Call)]
    return any(re.search(r"lomo$", class_of(item), re.IGNORECASE) for item in calls)


def lines_of(sites: list[StepSite]) -> str:
    """The lines of steps with their optimizers, for a message."""
    return ", ".join(f"{site.statement.lineno} (`{site.owner}`)" for site in sites)


def several(sites: list[StepSite], advice: str) -> Refusal:
    text = f"several optimizers step before this (lines {lines_of(sites)}) and each may be skipped alone; {advice}"
    return Refusal("several-optimizers", text)


def unprepared(site: StepSite) -> Refusal:
    text = f"`{site.owner}` (stepped in line {site.statement.lineno}) is not prepared in this file: no `prepare` or "
    return Refusal(
        "unprepared-optimizer",
        text + f"`prepare_optimizer` gives `{site.who.key}` its value, so the skip flag will never be set",
    )
