"""Two real processes over gloo: DDP and FSDP2."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import accelerate
import pytest
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[2]
WORKER = Path(__file__).with_name("workers") / "scenarios.py"
TIMEOUT = 600

pytestmark = [pytest.mark.processes, pytest.mark.xdist_group("two processes")]


def launch(kind: str, out: Path) -> list[dict]:
    environment = os.environ | {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    result = subprocess.run(
        [*command, str(WORKER), kind, str(out)],
        env=environment,
        cwd=out,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-6000:]
    return [json.loads((out / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.fixture(scope="module", params=["ddp", "fsdp2"])
def ranks(request, tmp_path_factory):
    if request.param == "fsdp2" and Version(accelerate.__version__) < Version("1.6"):
        pytest.skip(f"FSDP2 came with accelerate 1.6, this is {accelerate.__version__}")
    return launch(request.param, tmp_path_factory.mktemp(request.param))


def test_a_finite_run_is_bit_identical_to_plain_accelerate(ranks):
    for rank in ranks:
        assert rank["ours"] == rank["plain"]
    assert ranks[0]["ours"]["weights"] == ranks[1]["ours"]["weights"]


@pytest.mark.parametrize("kind", ["adamw", "adamw fused"])
def test_an_overflow_on_one_rank_is_skipped_and_counted_on_both(ranks, kind):
    for rank in ranks:
        seen = rank[f"overflow {kind}"]
        assert seen["applied"] == [True, False, True, True, False, True]
        assert seen["counts"] == [6, 4, 2]
        assert seen["tensor"] == 4
        assert seen["scale"] == 4.0
        assert seen["finite"]
    assert ranks[0][f"overflow {kind}"]["weights"] == ranks[1][f"overflow {kind}"]["weights"]


@pytest.mark.parametrize("kind", ["adamw", "adamw fused"])
def test_fact_9_the_schedulers_count_is_not_the_applied_step(ranks, kind):
    for rank in ranks:
        assert rank["ours"]["last_epoch"] == 2 * 6
        assert rank[f"overflow {kind}"]["last_epoch"] == 2 * 4


@pytest.mark.parametrize("kind", ["adamw", "adamw fused"])
def test_a_checkpoint_restores_counts_and_weights_on_both(ranks, kind):
    for rank in ranks:
        seen = rank[f"overflow {kind}"]
        assert seen["loaded counts"] == [6, 4, 2]
        assert seen["loaded optimizer"] == 4
        assert seen["loaded weights"] == seen["weights"]


def test_fact_7_the_helpers_step_is_no_attempt(ranks):
    for rank in ranks:
        assert rank["helper"] == {"steps": 1, "counts": [0, 0, 0]}


def test_the_guard_agrees_over_both_ranks(ranks):
    for rank in ranks:
        assert rank["nonfinite"]["applied"] == [True, False, True, True, True, True]
        assert rank["nonfinite on one rank"] == {"outcome": "skipped", "finite": True}
    assert ranks[0]["nonfinite"]["weights"] == ranks[1]["nonfinite"]["weights"]


def test_ranks_that_disagree_are_named_before_anything_is_written(ranks):
    for rank in ranks:
        seen = rank["disagreement"]
        for message in seen["messages"]:
            told = "rank 0 has 3, rank 1 has 2"
            assert f"disagree about applied_step: {told}; applied_step of optimizer 0: {told}. " in message
        assert "disagree about attempted_step: rank 0 has 3, rank 1 has 4. " in seen["attempts"]
        assert not seen["saved"]


def test_backward_on_the_loss_is_noticed(ranks):
    for rank in ranks:
        assert rank["raw backward"]["counts"] == [3, 3, 0]


def test_an_average_travels_in_the_checkpoint(ranks):
    for rank in ranks:
        assert rank["average"] == {"step": 3, "moved": True, "same": True}
