"""What is said of a comparison that ends short, or that shows no repair."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.overflow.advice import shortfall, why_unchanged
from tools.overflow.launch import Finished, Job, Plan

STEP = """\
from accelerate import Accelerator
import math
accelerator = Accelerator()
for epoch in range(num_train_epochs):
    for batch in loader:
        accelerator.backward(model(batch))
        optimizer.step()
        if accelerator.sync_gradients and not accelerator.optimizer_step_was_skipped:
            global_step += 1
"""
BUDGET = STEP.replace("for epoch", "num_train_epochs = math.ceil(max_train_steps / num_updates)\nfor epoch", 1)


def finished(story, script: Path | str = "missing.py", returncode: int = 0) -> Finished:
    return Finished(Job("run", (str(script),), Plan(at=(2,))), returncode, {0: story.timeline})


def written(folder: Path, text: str) -> Path:
    (folder / "train.py").write_text(text)
    return folder / "train.py"


def short(story):
    return story().counter(0).attempt().counter(1).skip()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (BUDGET, ": the number of epochs leaves no room for skipped updates; `report` names it as `epoch-budget`"),
        (STEP, ": the loop makes a fixed number of attempts, so each one that is skipped is an update fewer"),
        ("if (", ": the loop makes a fixed number of attempts, so each one that is skipped is an update fewer"),
    ],
)
def test_a_run_that_ends_short_is_told_with_what_the_report_names_and_nothing_else(
    story, tmp_path: Path, text: str, why: str
) -> None:
    runs = [finished(story().attempt().attempt()), finished(short(story), written(tmp_path, text))]
    assert shortfall(runs) == [f"  note: it applied 1 updates, the finite run 2{why}"]


def test_a_counter_that_went_on_is_the_reason_before_any_other(story, tmp_path: Path) -> None:
    runs = [finished(story().attempt().attempt()), finished(short(story).counter(2), written(tmp_path, BUDGET))]
    assert shortfall(runs) == [
        "  note: it applied 1 updates, the finite run 2: what it skipped was counted as an update"
    ]


def test_a_reason_that_is_not_known_is_not_made_up(story) -> None:
    runs = [finished(story().attempt().attempt().attempt()), finished(short(story))]
    assert shortfall(runs) == ["  note: it applied 1 updates, the finite run 3"]


def test_a_script_that_no_rule_changes_is_told_what_report_can_say(story, tmp_path: Path) -> None:
    repaired = written(tmp_path, STEP)
    assert why_unchanged(finished(short(story), repaired)).endswith("nothing in this script; `report` says why")
    empty = written(tmp_path, "import my_loop\n")
    assert why_unchanged(finished(short(story), empty)).endswith("which the rules do not read")


def test_a_loop_of_the_trainer_is_known_by_what_ran(story, tmp_path: Path) -> None:
    told = short(story).add("counter", name="global_step", value=2, where="trainer.state.global_step")
    assert "its loop is the Trainer's" in why_unchanged(finished(told, written(tmp_path, "import my_loop\n")))
