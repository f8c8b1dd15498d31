"""Two processes on gloo: an overflow of one rank reaches the other through the reduction, as a real one does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytestmark = [pytest.mark.processes, pytest.mark.xdist_group("overflow-commands")]
SCRIPT = Path(__file__).parent / "scripts" / "two_ranks.py"


def test_an_overflow_on_rank_1_is_skipped_by_both(overflow, tmp_path: Path) -> None:
    launcher = ("torchrun", "--standalone", "--nproc_per_node", "2")
    result = overflow("--at", "3", "--rank", "1", "--json", "run.json", "--", *launcher, SCRIPT)
    assert result.returncode == 1, result.stderr
    assert "rank 0 of 2: 6" in result.stdout
    assert "did not skip the same updates" not in result.stdout
    assert "global_step moved on a skipped update at attempt 3" in result.stdout
    run = json.loads((tmp_path / "run.json").read_text())["runs"][0]
    assert (run["rank"], run["ranks"]) == (1, [0, 1])
    assert [attempt["outcome"] for attempt in run["attempts"]] == ["applied"] * 2 + ["skipped"] + ["applied"] * 3
    assert [attempt["injected"] for attempt in run["attempts"]].index(True) == 2
