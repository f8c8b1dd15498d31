"""The idiom loops on the real Accelerate: each shows its defect under an overflow, and none after the rewrite.

The loops get a toy kit that is made of torch in place of the torch-free one, so the very same text runs.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tools.overflow.launch import Plan
from tools.overflow.verdicts import judge
from tools.rewrite import rewrite

pytestmark = [pytest.mark.processes, pytest.mark.xdist_group("overflow-idioms")]
ROOT = Path(__file__).resolve().parents[3]
IDIOMS = ROOT / "tests" / "idioms"
HERE = Path(__file__).parent / "scripts"
KIT = HERE / "toykit_on_torch"
NO_TWIN = {
    "21_two_optimizers_same_window": "its second optimizer gets no gradients, which the real GradScaler refuses",
    "23_step_in_backward_hook": "its hooks are the toy kit's",
    "119_engine_steps": "its engine is the toy kit's",
    "120_counted_optimizer": "its second optimizer gets no gradients, which the real GradScaler refuses",
    "170_step_in_another_mode": "in that mode it moves the toy model by hand, and no optimizer attempts anything",
    "177_only_sounds_like_one": "it has no Accelerator, so there is nothing to observe",
    "141_list_of_optimizers": "its second optimizer gets no gradients, which the real GradScaler refuses",
}


def cases(*verdicts: str) -> list[str]:
    manifests = [IDIOMS / "manifest.json", IDIOMS / "own" / "manifest.json"]
    entries = [entry for path in manifests for entry in json.loads(path.read_text())]
    return [entry["id"] for entry in entries if entry["verdict"] in verdicts and entry["id"] not in NO_TWIN]


def loop(name: str) -> Path:
    places = [HERE / "twins" / f"{name}.py", IDIOMS / f"{name}.py", IDIOMS / "own" / f"{name}.py"]
    return next(path for path in places if path.exists())


def defects(ran) -> list[str]:
    assert ran.exit_code == 0, ran.output
    assert ran.timeline.attempts
    return [verdict.message for verdict in judge(ran.timeline) if verdict.is_defect]


def rewritten(name: str, folder: Path) -> Path:
    path = folder / f"{name}.py"
    path.write_bytes(rewrite(loop(name).read_bytes()).after)
    return path


@pytest.mark.parametrize("name", cases("rewrite"))
def test_a_loop_shows_its_defect_and_none_after_the_rewrite(workshop, tmp_path: Path, name: str) -> None:
    plan = Plan(at=(2, 5))
    before = workshop.run(loop(name), tmp_path, plan, path=(KIT,))
    assert defects(before) != []
    after = workshop.run(rewritten(name, tmp_path), tmp_path, plan, path=(KIT,))
    assert defects(after) == []
    assert any(attempt.injected and not attempt.applied for attempt in after.timeline.attempts)


@pytest.mark.parametrize("name", [name for name in cases("rewrite") if name.startswith(("0", "1_", "2", "3", "4"))])
def test_a_finite_run_of_a_loop_has_no_defect(workshop, tmp_path: Path, name: str) -> None:
    assert defects(workshop.run(loop(name), tmp_path, path=(KIT,))) == []


@pytest.mark.parametrize("name", cases("noop"))
def test_a_loop_that_is_right_already_has_no_defect(workshop, tmp_path: Path, name: str) -> None:
    assert defects(workshop.run(loop(name), tmp_path, Plan(at=(2, 5)), path=(KIT,))) == []


def test_a_loop_that_is_rewritten_in_part_keeps_only_the_defects_that_were_refused(workshop, tmp_path: Path) -> None:
    name = "15_range_bound_counter"
    before = defects(workshop.run(loop(name), tmp_path, Plan(at=(2,)), path=(KIT,)))
    after = defects(workshop.run(rewritten(name, tmp_path), tmp_path, Plan(at=(2,)), path=(KIT,)))
    assert "EMA moved on a skipped update at attempt 2" in before
    assert "self.step moved on a skipped update at attempt 2" in after
    assert not any("EMA" in text for text in after)


def test_a_loop_whose_optimizer_is_not_prepared_loses_its_weights(workshop, tmp_path: Path) -> None:
    ran = workshop.run(loop("26_optimizer_never_prepared"), tmp_path, Plan(at=(2,)), path=(KIT,))
    assert defects(ran) == ["attempt 2 was applied with an infinite gradient: no scaler checks this optimizer"]
