"""Keep counters of skipped steps in TrainerState.

What: two fields, `num_skipped_steps` and `num_skipped_steps_in_a_row`, written to `trainer_state.json` when they are
not zero and read from there with 0 as default.
Why: the next patches need to know how many attempts there were, also after a resume, and how many of the last ones
were skipped. A run without skips writes the same file as before, which older releases can read.
Refuses: a TrainerState whose `save_to_json` does not dump `dataclasses.asdict(self)`.
"""

from __future__ import annotations

from ..source import Edit
from .paths import CALLBACKS
from .shape import after, before, class_named, entry_end, find, instead, method
from .step import Placed, Read, Step

FIELDS = """
num_skipped_steps: int = 0
num_skipped_steps_in_a_row: int = 0
"""

CONTENT = """
content = dataclasses.asdict(self)
for counter in ("num_skipped_steps", "num_skipped_steps_in_a_row"):
    if content[counter] == 0:
        del content[counter]  # releases without the counters can then load the file
"""


def _entries(read: Read) -> Placed:
    source = read(CALLBACKS)
    end, indent = entry_end(source, class_named(source, "TrainerState"), "global_step")
    lines = [
        "num_skipped_steps (`int`, *optional*, defaults to 0):",
        "    The number of optimizer steps that were skipped because of infinite or NaN gradients (mixed precision",
        "    training). They used up their batches, but they are not update steps: `global_step + num_skipped_steps`",
        "    is how far the training is in its data.",
        "num_skipped_steps_in_a_row (`int`, *optional*, defaults to 0):",
        "    How many optimizer steps were skipped since the last update step was completed.",
    ]
    text = "".join(indent + line + source.newline for line in lines)
    return Placed(CALLBACKS, Edit(end, end, text), "docstring")


def _fields(read: Read) -> Placed:
    source = read(CALLBACKS)
    scope = class_named(source, "TrainerState")
    last = find(scope, "stateful_callbacks: ANY = None", "`TrainerState`")
    return Placed(CALLBACKS, after(source, last, FIELDS), "fields of TrainerState")


def _content(read: Read) -> Placed:
    source = read(CALLBACKS)
    scope = method(source, "TrainerState", "save_to_json")
    dump = find(
        scope, "ANY = json.dumps(dataclasses.asdict(self), indent=ANY, sort_keys=True) + ANY", "`save_to_json`"
    )
    return Placed(CALLBACKS, before(source, dump, CONTENT), "what save_to_json writes")


def _dump(read: Read) -> Placed:
    source = read(CALLBACKS)
    scope = method(source, "TrainerState", "save_to_json")
    content = find(scope, "dataclasses.asdict(self)", "`save_to_json`")
    return Placed(CALLBACKS, instead(source, content, "content"), "what save_to_json writes")


STEP = Step(
    name="count-skipped-steps",
    subject="Keep counters of skipped optimizer steps in TrainerState",
    body="""\
A step that the gradient scaler skips uses up its batches without
updating anything. To tell updates from attempts, also after a resume,
TrainerState needs to know how many were skipped, and how many of the
last ones in a row.

Nothing counts yet. The counters are left out of trainer_state.json
while they are zero: a run without skips writes the same bytes as
before, and older releases can load them.""",
    places=(_entries, _fields, _content, _dump),
)
