"""Go on with a stream for steps that were skipped.

What: an epoch over a dataset without length has as many attempts more as there are skipped steps, also for the
position of a resumed run.
Why: such an epoch has `max_steps` attempts. After skips a stream that is not exhausted would be opened again and read
from its start. One that is exhausted ends its epoch as before.
Refuses: a loop over updates that is not a `for` over a `range`; other marks of a missing length than `sys.maxsize`.
"""

from __future__ import annotations

from .paths import TRAINER
from .shape import ShapeError, above, find, header, method
from .step import Placed, Read, Step

LOOP = """
for {step} in itertools.count({first}):
    # Without a length, one epoch lasts until `max_steps` updates are done or the data ends
    num_extra_steps = self.state.num_skipped_steps if self.state.num_train_epochs == sys.maxsize else 0
    if {step} >= {updates} + num_extra_steps:
        break
"""

RESUME = """
if num_train_epochs == sys.maxsize:
    # Without a length, one epoch lasts until `max_steps` updates are done or the data ends
    num_update_steps_per_epoch += self.state.num_skipped_steps
"""


def _loop(read: Read) -> Placed:
    source = read(TRAINER)
    find(method(source, "Trainer", "set_initial_training_values"), "num_train_epochs = sys.maxsize", "the Trainer")
    scope = method(source, "Trainer", "_run_epoch")
    loop = find(scope, "for update_step in range(ANY, ANY): ...", "`_run_epoch`")
    first, updates = (source.segment(end) for end in loop.iter.args)
    text = LOOP.format(step=loop.target.id, first=first, updates=updates)
    return Placed(TRAINER, header(source, loop, text), "loop over updates")


def _resume(read: Read) -> Placed:
    scope = method(read(TRAINER), "Trainer", "_init_training_state")
    names = {argument.arg for argument in scope.args.args}
    if not {"num_train_epochs", "num_update_steps_per_epoch"} <= names:
        raise ShapeError("`_init_training_state` must take the numbers of epochs and of updates", scope.lineno)
    first = find(scope, "epochs_trained = int(ANY // num_update_steps_per_epoch)", "`_init_training_state`")
    return Placed(TRAINER, above(read(TRAINER), first, RESUME), "position of a resumed run")


STEP = Step(
    name="streams-go-on",
    subject="Go on with a stream for optimizer steps that were skipped",
    body="""\
An epoch over a dataset without length has max_steps attempts. Let it
have one more for each skipped step, so that a stream that has not ended
is not opened again and read from its start. A finite one is iterated
again as before, and an exhausted one still ends the training.

Nothing counts skipped steps yet, so this changes nothing.""",
    places=(_loop, _resume),
)
