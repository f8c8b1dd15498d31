"""The real DeepSpeed engine on the CPU, in fp16, ZeRO 1 and 2. It needs an environment of its own."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WORKER = Path(__file__).with_name("workers") / "deepspeed_engine.py"
TIMEOUT = 600

pytestmark = [pytest.mark.processes, pytest.mark.xdist_group("deepspeed")]


def python_with_deepspeed() -> str:
    """The interpreter named by DEEPSPEED_PYTHON, that of `.venv-deepspeed`, or this one if it has DeepSpeed."""
    own = ROOT / ".venv-deepspeed" / "bin" / "python"
    if named := os.environ.get("DEEPSPEED_PYTHON"):
        return named
    if own.exists():
        return str(own)
    if importlib.util.find_spec("deepspeed") is not None:
        return sys.executable
    pytest.skip(
        "DeepSpeed is not installed: no .venv-deepspeed, and DEEPSPEED_PYTHON names no interpreter that has it"
    )


@pytest.fixture(scope="module", params=[1, 2], ids=["ZeRO 1", "ZeRO 2"])
def result(request, tmp_path_factory):
    python = python_with_deepspeed()
    out = tmp_path_factory.mktemp("deepspeed")
    environment = os.environ | {
        "ACCELERATE_USE_DEEPSPEED": "true",
        "DS_ACCELERATOR": "cpu",
        "LOCAL_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "0",  # a process alone takes whichever is free
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
        "RANK": "0",
        "WORLD_SIZE": "1",
    }
    command = [python, str(WORKER), str(request.param), str(out)]
    run = subprocess.run(
        command, env=environment, cwd=out, capture_output=True, text=True, timeout=TIMEOUT, check=False
    )
    assert run.returncode == 0, run.stderr[-6000:]
    return json.loads((out / "result.json").read_text())


def test_a_finite_run_is_bit_identical_to_plain_accelerate(result):
    assert result["finite ours"] == result["finite plain"]


def test_the_step_within_backward_is_seen(result):
    applied, skipped = ["applied", True, False], ["skipped", False, True]
    assert result["seen"] == [skipped, applied, applied, skipped, applied, applied]


def test_the_counts_are_those_of_the_engine(result):
    seen = result["after"]
    assert seen["engine"] == [6, 2]
    assert seen["counts"] == seen["optimizer"] == [6, 4, 2]
    assert seen["tensor"] == 4


@pytest.mark.parametrize("which", ["loaded", "loaded without file"])
def test_a_checkpoint_restores_counts_with_and_without_the_file(result, which):
    assert "applied_step.json" in result["files"]
    assert result[which] == result["after"]


def test_micro_batches_are_no_attempts(result):
    idle = ["not attempted", False, False]
    applied, skipped = ["applied", True, False], ["skipped", False, True]
    assert result["accumulated"] == [idle, skipped, idle, applied, idle, applied]
    assert result["after accumulation"]["counts"] == result["after accumulation"]["optimizer"] == [3, 2, 1]


def test_too_many_skips_raise_and_name_the_engines_scale(result):
    assert "3 updates in a row were skipped" in result["error"]
    assert "the loss scale was 16 before them and is 2 now" in result["error"]


def test_the_guard_for_non_finite_gradients_is_refused(result):
    assert "`skip_nonfinite` must be off with DEEPSPEED" in result["guard"]


def test_attaching_and_detaching_work_here_too(result):
    assert result["attached"] == [6, 5, 1]
    assert result["detached"] == ["accelerate.accelerator", "DeepSpeedOptimizerWrapper"]


def test_the_callback_counts_once_with_and_without_an_attached_accelerator(result):
    assert result["trainer"] == [[[1, 2, 3, 4, 5], 6, 5, 1]] * 2
