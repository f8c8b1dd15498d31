"""The observer changes nothing: weights, averages, optimizer state and random numbers are the script's own, bit for bit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tools.overflow.launch import Plan

pytestmark = [pytest.mark.processes, pytest.mark.xdist_group("overflow-workshop")]
LOOP = Path(__file__).parent / "scripts" / "loop.py"
ROOT = Path(__file__).resolve().parents[3]
VARIANTS = {
    "plain": ("--steps", "6"),
    "accumulated": ("--steps", "6", "--accumulate", "3"),
    "fused": ("--steps", "6", "--fused"),
    "our average": ("--steps", "6", "--average", "ours"),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_finite_run_is_bit_identical_to_the_script_alone(workshop, tmp_path: Path, variant: str) -> None:
    saved = {name: tmp_path / f"{name}.pt" for name in ("alone", "observed")}
    alone = workshop.run(
        LOOP, tmp_path, None, *VARIANTS[variant], "--save", str(saved["alone"]), path=(ROOT,), alone=True
    )
    watched = workshop.run(LOOP, tmp_path, Plan(), *VARIANTS[variant], "--save", str(saved["observed"]), path=(ROOT,))
    assert (alone.exit_code, watched.exit_code) == (0, 0), watched.output
    assert len(watched.timeline.attempts) == 6
    assert alone.timeline.attempts == []
    assert same(workshop, saved["alone"], saved["observed"])


def test_the_scaler_that_is_installed_changes_no_bit_before_the_overflow(workshop, tmp_path: Path) -> None:
    alone, scaled = tmp_path / "alone.pt", tmp_path / "scaled.pt"
    workshop.run(LOOP, tmp_path, None, "--steps", "5", "--average", "none", "--save", str(alone), alone=True)
    ran = workshop.run(LOOP, tmp_path, Plan(at=(6,)), "--steps", "5", "--average", "none", "--save", str(scaled))
    assert ran.timeline.optimizers[1].scaler == "installed"
    assert same(workshop, alone, scaled)


def test_the_comparison_of_these_tests_sees_a_difference(workshop, tmp_path: Path) -> None:
    alone, other = tmp_path / "alone.pt", tmp_path / "other.pt"
    workshop.run(LOOP, tmp_path, None, "--steps", "6", "--save", str(alone), alone=True)
    workshop.run(LOOP, tmp_path, Plan(at=(2,)), "--steps", "6", "--save", str(other))
    assert not same(workshop, alone, other)


def same(workshop, first: Path, second: Path) -> bool:
    """Whether two saved files hold the same tensors and values, to the bit."""
    code = (
        "import sys, torch\n"
        "def flat(value, path=''):\n"
        "    if torch.is_tensor(value):\n"
        "        return [(path, value.dtype, value.contiguous().numpy().tobytes())]\n"
        "    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, (list, tuple)) else []\n"
        "    return [leaf for name, item in items for leaf in flat(item, f'{path}/{name}')] or [(path, repr(value))]\n"
        "a, b = (flat(torch.load(path, weights_only=True)) for path in sys.argv[1:])\n"
        "assert len(a) > 10\n"
        "sys.exit(0 if a == b else 3)\n"
    )
    result = subprocess.run([sys.executable, "-c", code, str(first), str(second)], check=False, capture_output=True)
    assert result.returncode in (0, 3), result.stderr
    return result.returncode == 0
