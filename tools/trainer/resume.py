"""Resume by attempts.

What: `_init_training_state` computes the position in the data from updates plus skipped steps, and lowers
`state.max_steps` of a run over epochs by the skipped ones.
Why: a skipped step used up its batches. Without skips both sums are what they were.
Refuses: a Trainer that computes the position elsewhere (up to 5.0: inline in `_inner_training_loop`).
"""

from __future__ import annotations

import ast

from .paths import TRAINER
from .shape import after, before, find, instead, method, statement
from .step import Placed, Read, Step

ATTEMPTS = """
# A skipped step used up its batches too
num_attempts = self.state.global_step + self.state.num_skipped_steps
"""

UPDATES = """
if self.args.max_steps < 0:
    # The epochs give a number of attempts: those that were skipped are missing from the updates
    self.state.max_steps -= self.state.num_skipped_steps
"""


def _scope(read: Read) -> ast.FunctionDef:
    return method(read(TRAINER), "Trainer", "_init_training_state")


def _attempts(read: Read) -> Placed:
    first = find(_scope(read), "epochs_trained = int(self.state.global_step // ANY)", "`_init_training_state`")
    return Placed(TRAINER, before(read(TRAINER), first, ATTEMPTS), "position of a resumed run")


def _epochs(read: Read) -> Placed:
    quotient = find(_scope(read), "self.state.global_step // ANY", "`_init_training_state`")
    return Placed(TRAINER, instead(read(TRAINER), quotient.left, "num_attempts"), "position of a resumed run")


def _steps(read: Read) -> Placed:
    rest = find(_scope(read), "self.state.global_step % ANY", "`_init_training_state`")
    return Placed(TRAINER, instead(read(TRAINER), rest.left, "num_attempts"), "position of a resumed run")


def _updates(read: Read) -> Placed:
    call = statement(
        _scope(read), "self.state.init_training_references(self, ANY, ANY, ANY)", "`_init_training_state`"
    )
    return Placed(TRAINER, after(read(TRAINER), call, UPDATES), "max_steps of a resumed run")


STEP = Step(
    name="resume-by-attempts",
    subject="Resume training at the attempt, not at the update",
    body="""\
Where a resumed run goes on in the data is decided by how many attempts
there were, updates and skipped steps, not by the updates alone.

Nothing counts skipped steps yet, so this changes nothing, and
checkpoints without the counter resume as they did.""",
    places=(_attempts, _epochs, _steps, _updates),
)
