"""Go on with a stream for steps that were skipped.

What: an epoch over a dataset without length has as many attempts more as there are skipped steps, also for the
position of a resumed run. A stream that is exhausted for good ends the training with its last step saved.
Why: such an epoch has `max_steps` attempts. After skips a stream that is not exhausted would be opened again and read
from its start. One that is exhausted ends its epoch and is opened again as before; if that finds nothing because it
can be read once only, Accelerate's dispatcher raises a ValueError, which a run without skips would not have met.
Refuses: a loop over updates that is not a `for` over a `range`; other marks of a missing length than `sys.maxsize`.
"""

from __future__ import annotations

from .paths import TRAINER
from .shape import ShapeError, above, after, find, header, instead, method
from .step import Placed, Read, Step

LOOP = """
for {step} in itertools.count({first}):
    # Without a length, one epoch lasts until `max_steps` updates are done or the data ends
    num_extra_steps = self.state.num_skipped_steps if self.state.num_train_epochs == sys.maxsize else 0
    if {step} >= {updates} + num_extra_steps:
        break
"""

FETCH = """
try:
    {target} = {call}(
        {arguments}
    )
except ValueError:
    # Only a stream that can be read once has no first batch when it is opened again for skipped steps
    if step >= 0 or epoch == epochs_trained or num_extra_steps == 0:
        raise
    break
"""

EXHAUSTED = """
if 0 < self.args.max_steps <= self.state.global_step + self.state.num_skipped_steps:
    # There was data for all steps, but some were skipped
    self.state.max_steps = self.state.global_step
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


def _fetch(read: Read) -> Placed:
    source = read(TRAINER)
    scope = method(source, "Trainer", "_run_epoch")
    fetch = find(scope, "ANY = self.get_batch_samples(ANY, ANY, ANY)", "`_run_epoch`")
    indent = source.indentation(fetch)
    target, call = source.segment(fetch.targets[0]), fetch.value
    arguments = ", ".join(source.segment(argument) for argument in call.args)
    text = FETCH.format(target=target, call=source.segment(call.func), arguments=arguments)
    text = text.strip("\n").replace("\n", "\n" + indent)
    return Placed(TRAINER, instead(source, fetch, text), "fetch of batches")


def _exhausted(read: Read) -> Placed:
    source = read(TRAINER)
    scope = method(source, "Trainer", "_run_epoch")
    block = find(scope, "if step < 0: ...", "`_run_epoch`")
    stop = find(block, "self.control.should_training_stop = True", "the end of a training without data")
    return Placed(TRAINER, after(source, stop, EXHAUSTED), "end of an exhausted stream")


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
again as before. One that is exhausted and can be read once only ends
the training with the steps that it gave, and they are saved.

Nothing counts skipped steps yet, so this changes nothing.""",
    places=(_loop, _fetch, _exhausted, _resume),
)
