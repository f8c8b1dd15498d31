"""Do not count an optimizer step that was skipped.

What: behind `optimizer.step()` a skipped step leaves with an early `continue`: gradients zeroed, position in the data
moved on, loss and gradient norm as before the attempt, no event, no scheduler step, no update counted. After 100
skips in a row the training ends with a message.
Why: `global_step` is the number of update steps completed. The answer is asked for once, since each question may
wait for the device. 100 halvings bring a loss scale of 2**40 down and end long before the scale's reciprocal
overflows, 144 halvings below 2**16, from where on the scaler itself applies infinite updates.
Refuses: a training step whose parts are not all there once, or a scheduler that is not behind the skip flag.
"""

from __future__ import annotations

import ast

from . import wording
from .paths import TRAINER
from .shape import after, find, method, method_after, siblings, statement, without_test
from .step import Placed, Read, Step

LOSS = """

# What a skipped step goes back to
applied_tr_loss, applied_grad_norm = self._tr_loss.clone(), grad_norm
"""

SKIP = """
if self.accelerator.optimizer_step_was_skipped:
    # Not an update step: only the position in the data moves on
    self._tr_loss, grad_norm = applied_tr_loss, applied_grad_norm
    {zero}
    {epoch}
    self._count_skipped_step()
    continue
self.state.num_skipped_steps_in_a_row = 0
"""

METHOD = '''
def _count_skipped_step(self):
    """Record an optimizer step that was skipped, and stop training when no step is left or to be hoped for."""
    self.state.num_skipped_steps += 1
    self.state.num_skipped_steps_in_a_row += 1
    if self.args.max_steps < 0:
        # The epochs give a number of attempts: this one is missing from the updates
        self.state.max_steps -= 1
        if self.state.global_step >= self.state.max_steps:
            self.control.should_training_stop = True
    # Each skip halves the loss scale. 100 in a row are enough for any scale to come down, and few enough for its
    # reciprocal to stay finite.
    if self.state.num_skipped_steps_in_a_row >= 100:
        logger.error(
            f"The last {self.state.num_skipped_steps_in_a_row} optimizer steps were all skipped because their "
            f"gradients were infinite or NaN, so training stops at step {self.state.global_step}. A lower loss scale "
            "does not help any more: check the data and the loss for infinite or NaN values, lower the learning "
            "rate, or train in bfloat16 or float32."
        )
        self.control.should_training_stop = True
'''


def _scope(read: Read) -> ast.FunctionDef:
    return method(read(TRAINER), "Trainer", "_run_epoch")


def _loss(read: Read) -> Placed:
    scope = _scope(read)
    find(scope, "self._tr_loss += tr_loss_step", "`_run_epoch`")
    loop = find(scope, "for i, inputs in enumerate(ANY): ...", "`_run_epoch`")
    body, index = siblings(scope, loop)
    return Placed(TRAINER, after(read(TRAINER), body[index - 1], LOSS), "loss of the attempt")


def _skip(read: Read) -> Placed:
    source, scope = read(TRAINER), _scope(read)
    step = statement(scope, "self.optimizer.step()", "`_run_epoch`")
    zero = statement(scope, "model.zero_grad()", "`_run_epoch`")
    epoch = find(scope, "self.state.epoch = ANY", "`_run_epoch`")
    find(scope, "self.state.global_step += 1", "`_run_epoch`")
    text = SKIP.format(zero=source.segment(zero), epoch=source.segment(epoch))
    return Placed(TRAINER, after(source, step, text), "optimizer step")


def _scheduler(read: Read) -> Placed:
    test = find(_scope(read), "if not self.accelerator.optimizer_step_was_skipped: ...", "`_run_epoch`")
    statement_in_test = statement(test, "self.lr_scheduler.step()", "the test on the skip flag")
    assert statement_in_test
    return Placed(TRAINER, without_test(read(TRAINER), test), "scheduler step")


def _method(read: Read) -> Placed:
    return Placed(TRAINER, method_after(read(TRAINER), _scope(read), METHOD), "count of a skipped step")


STEP = Step(
    name="count-applied-updates",
    subject="Do not count optimizer steps that were skipped",
    body="""\
global_step is documented as the number of update steps completed, but
steps that the gradient scaler skipped were counted as well, logged,
evaluated and saved.

A skipped step now ends early: its gradients are zeroed and the position
in the data moves on, but no update is counted, no event is fired, and
its loss and gradient norm are not logged. max_steps updates are
applied, or as many as the epochs have left. When 100 steps in a row
were skipped, training ends with a message that names the cause.""",
    places=(_loss, _skip, _scheduler, _method, *wording.PLACES),
)
