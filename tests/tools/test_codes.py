"""Every code that a report can show has its meaning in the table."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

from tools.codes import CODES
from tools.trainer import skip_flag
from tools.trainer.series import STEPS

PATCHES = Path(__file__).resolve().parents[2] / "patches"
TOOLS = Path(__file__).resolve().parents[2] / "tools"


@pytest.mark.parametrize("report", sorted(PATCHES.rglob("report.json")), ids=lambda path: path.parent.name)
def test_codes_of_committed_reports_are_explained(report: Path) -> None:
    files = json.loads(report.read_text(encoding="utf-8"))["files"]
    used = {site["code"] for file in files for site in file["sites"]}
    assert used
    assert used <= set(CODES)


def test_each_step_of_the_trainer_series_has_a_code() -> None:
    assert {f"trainer-{step.name}" for step in (*STEPS, skip_flag.STEP)} <= set(CODES)


def codes_in(path: Path) -> set[str]:
    """Codes that a module gives to sites and refusals in so many words."""
    places = {"Site": 3, "Refusal": 0, "_refusal": 0, "_site": 2, "warn": 2, "rewritten": 2, "report": 2}
    found = set()
    for node in ast.walk(ast.parse(path.read_bytes())):
        name = getattr(node.func, "attr", getattr(node.func, "id", "")) if isinstance(node, ast.Call) else ""
        if name in places and len(node.args) > places[name]:
            value = node.args[places[name]]
            found |= {value.value} if isinstance(value, ast.Constant) and isinstance(value.value, str) else set()
    return found


def test_each_code_that_the_tools_give_is_explained() -> None:
    given = {path: codes_in(path) for path in TOOLS.rglob("*.py")}
    assert {"gated", "missing-file", "skip-flag-right", "held-log"} <= set().union(*given.values())
    assert {code: path for path, codes in given.items() for code in codes if code not in CODES} == {}
