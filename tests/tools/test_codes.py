"""Every code that a report can show has its meaning in the table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tools.codes import CODES
from tools.trainer import skip_flag
from tools.trainer.series import STEPS

PATCHES = Path(__file__).resolve().parents[2] / "patches"


@pytest.mark.parametrize("report", sorted(PATCHES.rglob("report.json")), ids=lambda path: path.parent.name)
def test_codes_of_committed_reports_are_explained(report: Path) -> None:
    files = json.loads(report.read_text(encoding="utf-8"))["files"]
    used = {site["code"] for file in files for site in file["sites"]}
    assert used
    assert used <= set(CODES)


def test_each_step_of_the_trainer_series_has_a_code() -> None:
    assert {f"trainer-{step.name}" for step in (*STEPS, skip_flag.STEP)} <= set(CODES)
