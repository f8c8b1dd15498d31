"""The real DeepSpeed engine on the CPU: it gets the overflow, drops the update, and is compared with what it says."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.processes, pytest.mark.xdist_group("deepspeed")]
ROOT = Path(__file__).resolve().parents[3]
SCRIPT = Path(__file__).parent / "scripts" / "deepspeed_loop.py"


def python_with_deepspeed() -> str:
    own = ROOT / ".venv-deepspeed" / "bin" / "python"
    if named := os.environ.get("DEEPSPEED_PYTHON"):
        return named
    if own.exists():
        return str(own)
    if importlib.util.find_spec("deepspeed") is not None:
        return sys.executable
    pytest.skip("DeepSpeed is not installed: no .venv-deepspeed, and DEEPSPEED_PYTHON names no interpreter with it")


def test_an_engine_skips_the_update_and_says_so(overflow, tmp_path: Path, json_schema) -> None:
    python = python_with_deepspeed()
    # Port 0: a process alone takes whichever is free.
    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    env = {**alone, "ACCELERATE_USE_DEEPSPEED": "true", "DS_ACCELERATOR": "cpu"}
    result = overflow("--at", "2", "--json", "run.json", "--python", python, "--", SCRIPT, env=env)
    assert "engine: 4 steps, 1 skipped" in result.stdout, result.stdout + result.stderr
    assert result.returncode == 1
    assert "  global_step moved on a skipped update at attempt 2\n" in result.stdout
    content = json.loads((tmp_path / "run.json").read_text())
    json_schema(content)
    run = content["runs"][0]
    seen = [(a["outcome"], a["injected"], a["weights_changed"], a["said_skipped"]) for a in run["attempts"]]
    applied, skipped = ("applied", False, True, False), ("skipped", True, False, True)
    assert seen == [applied, skipped, applied, applied]
    assert [a["scale"] for a in run["attempts"]][1] == [16.0, 8.0]
    assert run["optimizers"][0]["scaler"] == "script"
