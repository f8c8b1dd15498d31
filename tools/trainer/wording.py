"""Say in the docstrings what is counted: the part of the gate that users read.

What: sentences in TrainerState, TrainingArguments and the events of TrainerCallback.
Refuses: docstrings that do not describe these arguments and events where they did.
"""

from __future__ import annotations

from ..source import Edit
from .paths import ARGUMENTS, CALLBACKS
from .shape import class_named, docstring_tail, entry_end, method
from .step import Placed, Read


def _entry(read: Read, path: str, owner: str, name: str, *lines: str) -> Placed:
    source = read(path)
    end, indent = entry_end(source, class_named(source, owner), name)
    text = "".join(f"{indent}    {line}{source.newline}" for line in lines)
    return Placed(path, Edit(end, end, text), "docstring")


def _event(read: Read, event: str, text: str) -> Placed:
    source = read(CALLBACKS)
    return Placed(CALLBACKS, docstring_tail(source, method(source, "TrainerCallback", event), text), "docstring")


def _global_step(read: Read) -> Placed:
    return _entry(
        read,
        CALLBACKS,
        "TrainerState",
        "global_step",
        "Optimizer steps that were skipped because of infinite or NaN gradients are not counted.",
    )


def _max_steps_of_state(read: Read) -> Placed:
    return _entry(
        read,
        CALLBACKS,
        "TrainerState",
        "max_steps",
        "When training for a number of epochs, each skipped optimizer step lowers it by one.",
    )


def _max_steps(read: Read) -> Placed:
    return _entry(
        read,
        ARGUMENTS,
        "TrainingArguments",
        "max_steps",
        "Only steps that update the weights count: one that is skipped because of infinite or NaN gradients in mixed",
        "precision training is made up for, with more data if need be.",
    )


def _num_train_epochs(read: Read) -> Placed:
    return _entry(
        read,
        ARGUMENTS,
        "TrainingArguments",
        "num_train_epochs",
        "Optimizer steps that are skipped are not made up for: they leave fewer update steps in the same epochs.",
    )


def _step_begin(read: Read) -> Placed:
    text = "If the optimizer step is skipped (infinite or NaN gradients), no `on_step_end` follows.\n"
    return _event(read, "on_step_begin", text)


def _pre_optimizer_step(read: Read) -> Placed:
    return _event(read, "on_pre_optimizer_step", "Also called if the optimizer step is then skipped.\n")


def _optimizer_step(read: Read) -> Placed:
    return _event(read, "on_optimizer_step", "Not called if the optimizer step was skipped.\n")


def _step_end(read: Read) -> Placed:
    return _event(read, "on_step_end", "Not called if the optimizer step was skipped.\n")


PLACES = (
    _global_step,
    _max_steps_of_state,
    _max_steps,
    _num_train_epochs,
    _step_begin,
    _pre_optimizer_step,
    _optimizer_step,
    _step_end,
)
