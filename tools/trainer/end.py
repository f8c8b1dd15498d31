"""End a run whose last step was skipped as if it had been applied.

What: `DefaultFlowCallback.on_epoch_end` asks for the last evaluation and the last checkpoint of a run by steps if
`max_steps` is reached and `on_step_end` could not ask. With the strategies of epochs it asks for nothing when every
step of the epoch was skipped.
Why: a run over epochs has so many attempts. When the last one is skipped, the last completed step becomes the last
of the run only then, after its own `on_step_end`. It is not saved again if it had its turn.
Refuses: a DefaultFlowCallback whose `on_step_end` does not end the training at `max_steps`, or without `on_epoch_end`.
"""

from __future__ import annotations

import ast

from .paths import CALLBACKS
from .shape import ShapeError, above, after, before, class_named, docstring_of, find, method
from .step import Placed, Read, Step

ATTRIBUTE = """
_has_ended = False  # whether `on_step_end` ended the training
_epoch_end_step = 0  # the step at which an epoch ended last

def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs):
    self._has_ended = False
    # A run that is resumed in the middle of an epoch completed steps of it before
    self._epoch_end_step = state.global_step if state.epoch % 1 == 0 else None

"""

LAST = "if state.global_step >= state.max_steps: ..."

EVALUATE = """
    if (
        args.eval_strategy == IntervalStrategy.STEPS
        and state.global_step % state.eval_steps != 0
        and args.eval_delay <= state.global_step
    ):
        control.should_evaluate = True
"""

EPOCH_END = """
# The last step was not known to be the last: those that were to follow were skipped
if state.num_skipped_steps > 0 and state.global_step >= state.max_steps and not self._has_ended:
{evaluate}\
    if (
        args.save_strategy == SaveStrategy.STEPS
        and state.global_step > 0
        and (state.save_steps <= 0 or state.global_step % state.save_steps != 0)
    ):
        control.should_save = True

# All steps of the epoch were skipped
if state.num_skipped_steps_in_a_row > 0 and state.global_step == self._epoch_end_step:
    return control
self._epoch_end_step = state.global_step

"""


def _start(read: Read) -> Placed:
    source = read(CALLBACKS)
    scope = class_named(source, "DefaultFlowCallback")
    if any(isinstance(node, ast.FunctionDef) and node.name == "on_train_begin" for node in scope.body):
        raise ShapeError("`DefaultFlowCallback` must not have `on_train_begin` yet", scope.lineno)
    docstring_of(scope)
    step_end = method(source, "DefaultFlowCallback", "on_step_end")
    return Placed(CALLBACKS, before(source, step_end, ATTRIBUTE), "start of the default flow")


def _step_end(read: Read) -> Placed:
    source = read(CALLBACKS)
    step_end = method(source, "DefaultFlowCallback", "on_step_end")
    last = find(step_end, LAST, "`DefaultFlowCallback.on_step_end`")
    stop = find(last, "control.should_training_stop = True", "the end of the training")
    return Placed(CALLBACKS, after(source, stop, "self._has_ended = True\n"), "end of the training")


def _epoch_end(read: Read) -> Placed:
    source = read(CALLBACKS)
    step_end = method(source, "DefaultFlowCallback", "on_step_end")
    last = find(step_end, LAST, "`DefaultFlowCallback.on_step_end`")
    evaluates = any(isinstance(node, ast.Attribute) and node.attr == "should_evaluate" for node in ast.walk(last))
    text = EPOCH_END.format(evaluate=EVALUATE.strip("\n") + "\n" if evaluates else "")
    first = method(source, "DefaultFlowCallback", "on_epoch_end").body[0]
    return Placed(CALLBACKS, above(source, first, text), "end of an epoch")


STEP = Step(
    name="end-after-skipped-step",
    subject="End a training whose last optimizer step was skipped with its checkpoint and evaluation",
    body="""\
A run over epochs has so many attempts. If the last one is skipped, no
on_step_end follows that could end the training with an evaluation and a
checkpoint: let on_epoch_end do it, for the last step that was
completed, unless that step had its turn. And do not evaluate and save
at the end of an epoch in which every step was skipped: nothing changed.

Nothing counts skipped steps yet, so this changes nothing.""",
    places=(_start, _step_end, _epoch_end),
)
