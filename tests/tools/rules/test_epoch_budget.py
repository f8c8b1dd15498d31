"""The epoch loop of a gated script reaches its updates, within a bound; what is not understood stays."""

from __future__ import annotations

import pytest

from tools.rules.epoch_budget import extend_epochs
from tools.site import Outcome
from tools.source import Source

BEFORE = """\
def main(args, loader, applied):
    global_step = 0
    first_epoch = 0
    attempts = 0
    for epoch in range(first_epoch, args.num_train_epochs):
        # about the data
        for step, batch in enumerate(loader):
            attempts += 1
            if accelerator.sync_gradients and not accelerator.optimizer_step_was_skipped:
                global_step += 1
            if global_step >= args.max_train_steps:
                break
        args.ends.append(epoch)
    return attempts, global_step
"""
AFTER = """\
def main(args, loader, applied):
    global_step = 0
    first_epoch = 0
    attempts = 0
    epoch_start_step = -1
    for epoch in range(first_epoch, args.num_train_epochs + args.max_train_steps):
        # Skipped updates take further epochs: stop at the last step, or when a whole epoch applied nothing.
        if global_step >= args.max_train_steps or (epoch >= args.num_train_epochs and global_step == epoch_start_step):
            break
        epoch_start_step = global_step
        # about the data
        for step, batch in enumerate(loader):
            attempts += 1
            if accelerator.sync_gradients and not accelerator.optimizer_step_was_skipped:
                global_step += 1
            if global_step >= args.max_train_steps:
                break
        args.ends.append(epoch)
    return attempts, global_step
"""


def rewritten(text: str) -> tuple[str, list]:
    source = Source.from_bytes(text.encode())
    edits, sites = extend_epochs(source)
    return source.edited(edits).text, sites


def test_the_loop_gets_a_bound_and_a_stop():
    text, (site,) = rewritten(BEFORE)
    assert text == AFTER
    assert (site.line, site.col, site.new_line, site.outcome) == (5, 5, 6, Outcome.REWRITTEN)
    assert (site.kind, site.code) == ("epoch budget", "epoch-budget-extended")
    assert site.message == "skipped updates get further epochs"
    assert text.splitlines()[site.new_line - 1].startswith("    for epoch in range")


def test_what_is_extended_already_stays():
    text, (site,) = rewritten(AFTER)
    assert text == AFTER
    assert (site.code, site.outcome, site.new_line) == ("epoch-budget-already", Outcome.RIGHT, None)
    assert site.message == "the loop runs until the updates are applied"


class Flags:
    """Stands in for an accelerator: each attempt's fate is given beforehand."""

    def __init__(self, skips: set[int]) -> None:
        self.skips, self.attempt, self.sync_gradients = skips, 0, True

    @property
    def optimizer_step_was_skipped(self) -> bool:
        self.attempt += 1
        return self.attempt in self.skips


class Arguments:
    def __init__(self, epochs: int, steps: int) -> None:
        self.num_train_epochs, self.max_train_steps, self.ends = epochs, steps, []


def run(text: str, skips: set[int], epochs: int, steps: int, batches: int) -> tuple[int, int, list[int]]:
    names: dict = {"accelerator": Flags(skips)}
    exec(compile(text, "script", "exec"), names)
    args = Arguments(epochs, steps)
    return (*names["main"](args, range(batches), None), args.ends)


@pytest.mark.parametrize(("epochs", "steps", "batches"), [(1, 6, 6), (2, 6, 3), (3, 7, 3), (6, 6, 1)])
def test_a_run_without_skips_is_the_same(epochs, steps, batches):
    assert run(AFTER, set(), epochs, steps, batches) == run(BEFORE, set(), epochs, steps, batches)


@pytest.mark.parametrize("skips", [{1}, {6}, {2, 5}, {1, 2, 3}, {5, 6, 7}])
def test_skips_are_made_up_for_and_no_update_is_too_many(skips):
    attempts, steps, _ = run(AFTER, skips, 2, 6, 3)
    assert steps == 6
    assert attempts == 6 + len(skips)
    assert run(BEFORE, skips, 2, 6, 3)[1] == 6 - len([skip for skip in skips if skip <= 6])


def test_a_run_in_which_nothing_is_applied_ends():
    attempts, steps, ends = run(AFTER, set(range(1, 10_000)), 2, 6, 3)
    assert (steps, ends) == (0, [0, 1])
    assert attempts == 6


def test_a_run_that_stops_applying_ends_an_epoch_later():
    _, steps, ends = run(AFTER, set(range(6, 10_000)), 2, 6, 3)
    assert (steps, ends) == (5, [0, 1, 2])


def test_a_long_head_is_written_as_the_formatter_writes_it():
    long = BEFORE.replace("args.num_train_epochs", "training_arguments.num_train_epochs")
    text, _ = rewritten(long)
    assert (
        "or (\n            epoch >= training_arguments.num_train_epochs and global_step == epoch_start_step\n        ):\n"
        in text
    )


@pytest.mark.parametrize(("num_columns", "num_lines"), [(119, 1), (120, 3)])
def test_the_head_is_broken_where_the_formatter_breaks_it(num_columns, num_lines):
    head = "        if global_step >= args.max_train_steps or (epoch >= {} and global_step == epoch_start_step):"
    name = "n" * (num_columns - len(head.format("")))
    text, _ = rewritten(BEFORE.replace("args.num_train_epochs", name))
    lines = text.split("\n")
    start = next(number for number, line in enumerate(lines) if line.startswith("        if global_step >="))
    assert lines.index("            break", start) - start == num_lines


def test_line_ends_and_tabs_stay():
    text, _ = rewritten(BEFORE.replace("    ", "\t").replace("\n", "\r\n"))
    assert text == AFTER.replace("    ", "\t").replace("\n", "\r\n")


def test_a_step_of_indentation_that_is_not_the_outer_one_stays():
    before, after = (text.replace("\n    ", "\n\t").replace("\t        ", "\t      ") for text in (BEFORE, AFTER))
    before, after = (text.replace("\t    ", "\t  ") for text in (before, after))
    assert "\n\tfor" in before
    assert "\n\t  for" in before
    assert rewritten(before)[0] == after


def test_a_head_over_several_lines_keeps_its_layout():
    text, (site,) = rewritten(
        BEFORE.replace(
            "range(first_epoch, args.num_train_epochs):", "range(\n        args.num_train_epochs\n    ):  # all"
        )
    )
    assert site.outcome is Outcome.REWRITTEN
    assert "range(\n        args.num_train_epochs + args.max_train_steps\n    ):  # all\n        # Skipped" in text
    compile(text, "script", "exec")


REFUSED = {
    "the gate of another counter": (
        "                global_step += 1",
        "                other_step += 1\n            global_step += 1",
        "epoch-budget-needs-gate",
    ),
    "no gate": (" and not accelerator.optimizer_step_was_skipped", "", "epoch-budget-needs-gate"),
    "the last epoch is asked for": (
        "args.ends.append(epoch)",
        "x = epoch == args.num_train_epochs - 1",
        "epoch-budget-compared",
    ),
    "an else": ("    return attempts", "    else:\n        pass\n    return attempts", "epoch-budget-unclear"),
    "a bound that is computed": ("args.num_train_epochs):", "args.num_train_epochs + 1):", "epoch-budget-unclear"),
    "two targets": ("for epoch in", "for epoch, in", "epoch-budget-unclear"),
}


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_cannot_be_extended_safely_is_refused(name):
    old, new, code = REFUSED[name]
    text = BEFORE.replace(old, new)
    assert text != BEFORE
    after, (site,) = rewritten(text)
    assert after == text
    assert (site.code, site.outcome, site.new_line) == (code, Outcome.REFUSED, None)
    assert site.message[:1].islower()


def test_a_limit_outside_the_inner_loop_is_not_that_of_the_epochs():
    text = BEFORE.replace("            if global_step >= args.max_train_steps:\n                break\n", "")
    text = text.replace(
        "        args.ends", "        if global_step >= args.max_train_steps:\n            break\n        args.ends"
    )
    assert rewritten(text) == (text, [])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("for step, batch in enumerate(loader):", "while loader:"),
        ("                break", "                print(1)\n                break"),
    ],
)
def test_an_inner_while_and_a_stop_that_says_something_are_as_good(old, new):
    text, (site,) = rewritten(BEFORE.replace(old, new))
    assert (site.code, site.outcome) == ("epoch-budget-extended", Outcome.REWRITTEN)
    assert "    epoch_start_step = -1\n" in text


def test_a_loop_above_that_has_no_budget_hides_none():
    _, (site,) = rewritten("for item in items:\n    print(item)\n" + BEFORE)
    assert (site.line, site.code) == (7, "epoch-budget-extended")


def test_two_epoch_loops_are_both_extended():
    text, sites = rewritten(BEFORE + BEFORE.replace("def main", "def again"))
    assert text == AFTER + AFTER.replace("def main", "def again")
    assert [site.line for site in sites] == [5, 5 + BEFORE.count("\n")]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("range(first_epoch, args.num_train_epochs)", "loaders"),
        ("global_step >= args.max_train_steps", "global_step > args.max_train_steps"),
        ("if global_step >= args.max_train_steps:\n                break", "pass"),
        ("range(first_epoch, args.num_train_epochs)", "range(0, args.num_train_epochs, 2)"),
        ("if global_step >= args", "if count() >= args"),
        ("if global_step >= args.max_train_steps", "if global_step >= limit()"),
        ("if global_step >= args.max_train_steps", "if batch >= args.max_train_steps"),
        ("range(first_epoch, args.num_train_epochs)", "trange(first_epoch, args.num_train_epochs)"),
        ("range(first_epoch, args.num_train_epochs)", "self.range(first_epoch, args.num_train_epochs)"),
        ("range(first_epoch, args.num_train_epochs)", "range(*bounds, step=1)"),
        ("if global_step >= args.max_train_steps", "if last >= global_step >= args.max_train_steps"),
        ("if global_step >= args.max_train_steps", "if done"),
        ("if global_step >= args.max_train_steps", "if global_step >= args.max_train_steps >= 0"),
        ("if global_step >= args.max_train_steps", "if global_step >= limits().steps"),
        ("global_step", "counts[position()]"),
        ("                break\n", "                print(1)\n"),
    ],
)
def test_other_loops_are_not_spoken_of(old, new):
    text = BEFORE.replace(old, new)
    assert text != BEFORE
    assert rewritten(text) == (text, [])
