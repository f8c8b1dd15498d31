"""Two processes, one of which overflows: both skip, and both end the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("two_ranks.py")


def launch(optim: str, *overflow: int) -> list[dict]:
    """What each of two processes reports; the second one overflows in these attempts."""
    arguments = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [*arguments, str(SCRIPT), optim, *map(str, overflow)]
    path = os.pathsep.join([str(SCRIPT.parent), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
    result = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return [json.loads(Path(f"rank{rank}.json").read_text()) for rank in (0, 1)]


@pytest.mark.slow
@pytest.mark.accelerate
def test_both_processes_end_the_same_when_one_overflows():
    ranks = launch("adamw_torch_fused", 3, 6)
    assert ranks[0] == ranks[1]
    assert (ranks[0]["step"], ranks[0]["applied"], ranks[0]["attempts"]) == (6, 6, 8)
    assert ranks[0]["saved"] == [2, 4, 6]
