"""Iterate over the data again for steps that were skipped.

What: the loop over epochs asks `_num_epochs_to_run` before each epoch how many there are.
Why: `num_train_epochs` is computed from `max_steps` as if each attempt were an update. Each skip would be missing at
the end, and with it the last checkpoint and evaluation. Runs are extended by the number of skips only: a callback
that cuts epochs short still shortens the run. A finished run that is resumed is over, although its attempts may have
ended in the middle of an epoch.
Refuses: a loop over epochs that is not a `for` over a `range` of two ends that calls `_run_epoch`.
"""

from __future__ import annotations

import ast

from .paths import TRAINER
from .shape import find, header, imported, method, method_after, only
from .step import Placed, Read, Step

LOOP = """
for {epoch} in itertools.count({first}):
    if {epoch} >= self._num_epochs_to_run({planned}, {updates}):
        break
"""

METHOD = '''
def _num_epochs_to_run(self, num_train_epochs, num_update_steps_per_epoch) -> int:
    """The planned number of epochs, and more where `max_steps` updates need them because steps were skipped."""
    num_skipped_steps = self.state.num_skipped_steps
    if num_skipped_steps > 0:
        if self.state.global_step >= self.state.max_steps:
            return 0
        if self.args.max_steps > 0:
            num_attempts = self.args.max_steps + num_skipped_steps
            num_train_epochs = max(num_train_epochs, math.ceil(num_attempts / num_update_steps_per_epoch))
            self.state.num_train_epochs = num_train_epochs
    return num_train_epochs
'''


def _scope(read: Read) -> ast.FunctionDef:
    return method(read(TRAINER), "Trainer", "_inner_training_loop")


def _import(read: Read) -> Placed:
    return Placed(TRAINER, imported(read(TRAINER), "itertools"), "import")


def _loop(read: Read) -> Placed:
    source, scope = read(TRAINER), _scope(read)
    loop = find(scope, "for epoch in range(ANY, ANY): ...", "`_inner_training_loop`")
    calls = [node for node in ast.walk(loop) if isinstance(node, ast.Call) and _name(node) == "_run_epoch"]
    call = only(calls, "call of `_run_epoch`", "the loop over epochs", loop.lineno)
    updates = only(
        [keyword.value for keyword in call.keywords if keyword.arg == "num_update_steps_per_epoch"],
        "argument `num_update_steps_per_epoch`",
        "the call of `_run_epoch`",
        call.lineno,
    )
    first, planned = (source.segment(end) for end in loop.iter.args)
    text = LOOP.format(epoch=loop.target.id, first=first, planned=planned, updates=source.segment(updates))
    return Placed(TRAINER, header(source, loop, text), "loop over epochs")


def _name(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else ""


def _method(read: Read) -> Placed:
    return Placed(TRAINER, method_after(read(TRAINER), _scope(read), METHOD), "number of epochs")


STEP = Step(
    name="epochs-for-skipped-steps",
    subject="Iterate over the data again for optimizer steps that were skipped",
    body="""\
The number of epochs is computed from max_steps as if each attempt were
an update. Ask for it before each epoch, and let it grow by as many
epochs as the skipped steps need. A finished run has none left when it
is resumed, even if it ended in the middle of an epoch.

Only skips extend a run: one whose callbacks cut epochs short ends where
it did. Nothing counts skipped steps yet, so this changes nothing.""",
    places=(_import, _loop, _method),
)
