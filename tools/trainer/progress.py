"""Let the progress bars follow `state.max_steps`.

What: ProgressCallback and NotebookProgressCallback set the total of their bar at each step and at the end.
Why: in a run over epochs each skipped step lowers `state.max_steps`, and a bar with the old total never fills.
Refuses: progress callbacks that keep their bar elsewhere than in `training_bar` and `training_tracker`.
"""

from __future__ import annotations

from .paths import CALLBACKS, NOTEBOOK
from .shape import before, find, method, statement
from .step import Placed, Read, Step

TOTAL = "self.training_bar.total = state.max_steps\n"


def _bar_step(read: Read) -> Placed:
    scope = method(read(CALLBACKS), "ProgressCallback", "on_step_end")
    update = statement(scope, "self.training_bar.update(ANY)", "`ProgressCallback.on_step_end`")
    return Placed(CALLBACKS, before(read(CALLBACKS), update, TOTAL), "progress bar")


def _bar_end(read: Read) -> Placed:
    scope = method(read(CALLBACKS), "ProgressCallback", "on_train_end")
    close = statement(scope, "self.training_bar.close()", "`ProgressCallback.on_train_end`")
    return Placed(CALLBACKS, before(read(CALLBACKS), close, TOTAL), "progress bar")


def _notebook(read: Read, event: str) -> Placed:
    where = f"`NotebookProgressCallback.{event}`"
    scope = method(read(NOTEBOOK), "NotebookProgressCallback", event)
    tracker = find(scope, "ANY = _require(self.training_tracker, ANY)", where)
    update = statement(scope, "ANY.update(ANY, comment=ANY, force_update=ANY)", where)
    text = f"{tracker.targets[0].id}.total = state.max_steps\n"
    return Placed(NOTEBOOK, before(read(NOTEBOOK), update, text), "notebook progress bar")


def _notebook_step(read: Read) -> Placed:
    return _notebook(read, "on_step_end")


def _notebook_end(read: Read) -> Placed:
    return _notebook(read, "on_train_end")


STEP = Step(
    name="progress-follows-max-steps",
    subject="Let the progress bars follow state.max_steps",
    body="""\
The steps that a run over epochs will reach are known at its start only
if none is skipped. Take the bar's total from the state at each step and
at the end, and not only once.

state.max_steps does not change yet, so this changes nothing.""",
    places=(_bar_step, _bar_end, _notebook_step, _notebook_end),
)
