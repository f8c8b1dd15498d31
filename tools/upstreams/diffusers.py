"""The series for the Diffusers examples: a pilot, official examples, research projects, and the epoch budget."""

from __future__ import annotations

from collections.abc import Callable

from ..codes import CODES
from ..patch import Series, Tree
from ..scripts import Kind, Revision, codes, extend, gate, listed, moved, script_series

PILOT = "examples/text_to_image/train_text_to_image.py"
_TOLD = ("gated", "reset-added")  # what every message says anyway
_THEIRS = ("examples/research_projects/", "examples/community/")


def _gate_body(path: str, revision: Revision) -> str:
    """Why and what, as far as it holds for this very script."""
    what = moved(revision) or ["counters"]
    found = codes(revision)
    parts = [
        "With fp16 mixed precision the gradient scaler skips `optimizer.step()` when a gradient is infinite or NaN; "
        "with the default scale that happens in nearly every run, first of all at its start. "
        f"{path.removeprefix('examples/')} asks for a sync boundary only, so a skipped update still moves "
        f"{listed(what)}.",
        "Ask Accelerate whether the update was applied. The answer belongs to the last attempt and is stale between "
        "sync boundaries, so both are asked together.",
    ]
    if "reset-added" in found:
        parts.append(
            "The loss that was accumulated for a skipped update is dropped at its sync boundary. Without that it "
            "would be added to the next logged value."
        )
    parts += [f"Besides, {CODES[code]}." for code in sorted(found) if code in CODES and code not in _TOLD]
    parts.append("A run in which nothing is skipped is unchanged.")
    return "\n\n".join(parts)


def _budget_body(path: str, _: Revision) -> str:
    return (
        "The number of epochs is computed from `max_train_steps`, one attempt an update. Since skipped updates no "
        f"longer count, {path.removeprefix('examples/')} can run out of epochs below `max_train_steps`.\n\n"
        "Go on with further epochs until the updates are applied. The step limit is asked at the top of each epoch, "
        "because inside it only ends the inner loop. An epoch beyond the planned ones that applies nothing is the "
        "last, so a run whose updates are all skipped still ends.\n\n"
        "A run in which nothing is skipped takes the epochs that it took before."
    )


GATE = Kind("Fix counting of skipped optimizer steps in {script}", _gate_body, gate)
BUDGET = Kind("Reach max_train_steps in {script} when steps are skipped", _budget_body, extend)

_FACTS = """\
## Facts

- The reports: huggingface/diffusers#15112 (EMA and `global_step` move on skipped updates in train_text_to_image.py);
  huggingface/accelerate#4242 and #4243 (with a fused optimizer the flag says False on a skip, so the change has no
  effect there until Accelerate is fixed); huggingface/diffusers#1864, #3467, #8384, #10855 (earlier reports of these
  counters).
- `Accelerator.optimizer_step_was_skipped` is written by `step()` on a sync boundary only and keeps its value until the
  next one. It is therefore asked together with `sync_gradients`, and after the step.
- Titles like `[train_text_to_image.py] Fix ...` are usual upstream. A plain `git am` cuts brackets off a subject, so
  these mails do without; put them into the title of the pull request.
- What the maintainers ask for: an acknowledgement on one issue first, then a pilot, then one script a pull request
  (#8312, #8384). No new import, helper or flag in an example. ruff 0.9.10, 119 columns.
"""

_OBSERVED = """\
## Observed

train_text_to_image.py, unchanged but for the patch, on a CPU with a tiny random pipeline, one infinite gradient at
attempt 4, 6 requested steps (accelerate 1.15.0, torch 2.13.0, `GradScaler("cpu")`):

| run | attempts | applied | EMA calls | last `global_step` |
| --- | --- | --- | --- | --- |
| finite | 6 | 6 | 6 | 6 |
| overflow at attempt 4 | 6 | 5 | 6 | 6 |
| overflow at attempt 4, patched | 7 | 6 | 6 | 6 |

With the test changed and the loss not reset, the loss logged at step 4 was 2.1573 in place of about 1.07: it held two
windows. To see it again:

    python -m tools overflow --at 4 --compare-rewrite -- CHECKOUT/examples/text_to_image/train_text_to_image.py ARGS...
"""

_GATE_LEFT_OUT = """\
## What these patches do not do

- Clipping stays under the plain sync test: gradients are clipped at every attempt.
- The number of epochs stays as it is, so a run with skipped updates can end below `max_train_steps`; series `budget`
  changes that and is kept apart because it is a matter of taste.
- Resuming computes the epoch from `global_step`. With skipped updates it can only go back in the data, not forward.
- A prepared scheduler already stands still on a skipped update: Accelerate sees to that.
"""

_BUDGET_LEFT_OUT = """\
## What this series does not do

- It stands on `official` and `research`: a script that does not count applied updates gets no further epochs.
- Resuming inside a further epoch starts at the epoch that `global_step` points to, as it does today.
- Scripts that measure the epoch against the number of epochs, or count epochs only, are left alone.
"""


def _pilot(tree: Tree) -> Series:
    return script_series(tree, "pilot", GATE, [PILOT], _notes(_FACTS, _OBSERVED, _GATE_LEFT_OUT))


def _official(tree: Tree) -> Series:
    paths = [path for path in tree.paths("examples/**/*.py") if not path.startswith(_THEIRS)]
    return script_series(tree, "official", GATE, paths, _notes(_FACTS, _OBSERVED, _GATE_LEFT_OUT))


def _research(tree: Tree) -> Series:
    paths = [path for path in tree.paths("examples/**/*.py") if path.startswith(_THEIRS)]
    own = "Research projects and community scripts belong to their authors: ask them, one project a pull request."
    return script_series(tree, "research", GATE, paths, _notes(own, _FACTS, _GATE_LEFT_OUT))


def _budget(tree: Tree) -> Series:
    return script_series(tree, "budget", BUDGET, tree.paths("examples/**/*.py"), _notes(_FACTS, _BUDGET_LEFT_OUT))


def _notes(*parts: str) -> str:
    return "\n\n".join(part.strip() for part in parts)


SERIES: dict[str, Callable[[Tree], Series]] = {
    "pilot": _pilot,
    "official": _official,
    "research": _research,
    "budget": _budget,
}
DEFAULT_SERIES = "pilot"
