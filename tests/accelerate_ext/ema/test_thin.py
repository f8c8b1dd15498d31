"""Thinning: what goes is what is missed least, and what is said of the error holds for what stays."""

import numpy as np
import pytest
import torch
from torch import nn

from accelerate_ext.ema import PostHocEMA, SnapshotError, list_snapshots, reconstruct, thin
from accelerate_ext.ema.plan import expected_errors


def run(folder, num=12, sigma_rel=(0.05, 0.10), every=100, **arguments):
    ema = PostHocEMA(nn.Linear(2, 2), sigma_rel, **arguments)
    for step in range(every, every * num + 1, every):
        ema.update(step)
        ema.snapshot(folder)
    return ema


def test_a_number_of_files_is_kept_from_both_ends_and_the_gaps_stay_small(tmp_path):
    run(tmp_path)
    made = thin(tmp_path, keep=12)
    left = list_snapshots(tmp_path)
    assert len(left) == len(made.kept) == 12
    assert [snapshot.path for snapshot in left] == [snapshot.path for snapshot in made.kept]
    assert {snapshot.sigma_rel for snapshot in left if snapshot.t == 1200} == {0.05, 0.10}
    assert min(snapshot.t for snapshot in left) < 600  # never only the last ones
    assert made.error_after >= made.error_before


def test_thinning_beats_keeping_the_last_ones(tmp_path):
    run(tmp_path)
    widths = [0.02, 0.05, 0.10, 0.15, 0.20, 0.25]
    last = max(expected_errors([700, 800, 900, 1000, 1100, 1200], (0.05, 0.10), widths).values())
    assert thin(tmp_path, keep=12).error_after < 0.7 * last


def test_the_stated_error_is_kept(tmp_path):
    run(tmp_path)
    made = thin(tmp_path, max_error=0.1)
    assert made.removed
    assert made.error_after <= 0.1
    again = thin(tmp_path, max_error=0.1)
    assert again.removed == ()
    assert again.error_before == pytest.approx(made.error_after)


def test_an_error_that_equals_the_bound_keeps_it(tmp_path):
    run(tmp_path)
    half = thin(tmp_path, keep=12, dry_run=True)
    assert half.error_after > half.error_before
    assert thin(tmp_path, max_error=half.error_before, dry_run=True).error_after <= half.error_before
    assert thin(tmp_path, max_error=half.error_after, dry_run=True).removed[:12] == half.removed


def test_a_bound_that_is_not_kept_now_removes_nothing(tmp_path):
    run(tmp_path)
    with pytest.raises(ValueError, match="above max_error=1e-05 already; nothing was removed"):
        thin(tmp_path, max_error=1e-5)
    assert len(list_snapshots(tmp_path)) == 24


def test_a_dry_run_says_what_it_would_do_and_does_not(tmp_path):
    run(tmp_path)
    told = thin(tmp_path, keep=10, dry_run=True)
    assert len(list_snapshots(tmp_path)) == 24
    assert told.num_bytes == sum(snapshot.path.stat().st_size for snapshot in told.removed)
    done = thin(tmp_path, keep=10)
    assert done == told


@pytest.mark.parametrize("sigma_rel", [(0.05, 0.10), (0.10,)])
def test_the_last_time_stays_even_if_fewer_are_asked_for(tmp_path, sigma_rel):
    run(tmp_path, num=3, sigma_rel=sigma_rel)
    assert [snapshot.t for snapshot in thin(tmp_path, keep=1).kept] == [300] * len(sigma_rel)


@pytest.mark.parametrize("arguments", [{}, {"keep": 3, "max_error": 0.1}])
def test_one_aim_is_needed(tmp_path, arguments):
    with pytest.raises(ValueError, match="give either `max_error` or `keep`"):
        thin(tmp_path, **arguments)


def test_a_folder_that_is_not_one_of_ours_is_refused(tmp_path):
    torch.save({}, tmp_path / "checkpoint-100.pt")
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*nofolder"):
        thin(tmp_path / "nofolder")
    with pytest.raises(SnapshotError, match="holds no snapshots; thinning removes nothing else"):
        thin(tmp_path, keep=1)
    assert (tmp_path / "checkpoint-100.pt").exists()


def test_a_folder_of_several_runs_is_refused(tmp_path):
    run(tmp_path, num=2, run="a")
    other = tmp_path / "other"
    run(other, num=4, run="b")
    for path in other.glob("*400-*"):
        path.rename(tmp_path / path.name)
    with pytest.raises(SnapshotError, match=r"several runs: a \(updates\), b \(updates\)"):
        thin(tmp_path, keep=1)


@pytest.mark.filterwarnings("ignore::accelerate_ext.ema.ReconstructionWarning")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_expected_errors_are_those_of_a_reconstruction_rounding_included(known_run, dtype):
    folder = known_run.save_all(8, dtype=dtype)
    made = thin(folder, keep=10, wanted=(0.04, 0.2), dry_run=True)
    widths = np.geomspace(0.04, 0.2, 13).tolist()
    expected = reconstruct(folder, widths, dry_run=True, force=True).predicted_error
    assert made.error_before == pytest.approx(max(expected))
    for snapshot in made.removed:
        snapshot.path.unlink()
    left = reconstruct(folder, widths, force=True).predicted_error
    assert made.error_after == pytest.approx(max(left), rel=0.5)  # it is judged by less now


@pytest.mark.filterwarnings("ignore::accelerate_ext.ema.ReconstructionWarning")
def test_the_error_is_that_of_averages_that_end_at_the_last_snapshot(known_run):
    folder = known_run.save_all(8, (0.10,))
    expected = reconstruct(folder, np.geomspace(0.04, 0.2, 13).tolist(), dry_run=True, force=True).predicted_error
    assert thin(folder, keep=8, wanted=(0.04, 0.2), dry_run=True).error_before == pytest.approx(max(expected))


def test_coarse_snapshots_do_not_hide_behind_a_bound_that_exact_ones_would_keep(known_run):
    folder = known_run.save_all(16, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="already; nothing was removed"):
        thin(folder, max_error=0.02, wanted=(0.05, 0.2))


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"max_error": float("nan")}, ValueError, "`max_error` must be a number above 0, got nan"),
        ({"max_error": 0}, ValueError, "`max_error` must be a number above 0, got 0"),
        ({"max_error": "x"}, ValueError, "`max_error` must be a number above 0, got 'x'"),
        ({"keep": 0}, ValueError, "`keep` must be 1 or more, got 0"),
        ({"keep": 2.5}, TypeError, "`keep` must be a whole number, got 2.5"),
        ({"keep": 3, "wanted": (0.1,)}, ValueError, "`wanted` must be two rising widths"),
        ({"keep": 3, "wanted": ("a", "b")}, ValueError, "`wanted` must be two rising widths"),
        ({"keep": 3, "wanted": (0.2, 0.1)}, ValueError, "`wanted` must be two rising widths"),
    ],
)
def test_bad_numbers_remove_nothing(tmp_path, arguments, error, text):
    run(tmp_path, num=4)
    with pytest.raises(error, match=text):
        thin(tmp_path, **arguments)
    assert len(list_snapshots(tmp_path)) == 8


def test_everything_that_is_wrong_is_said_at_once(tmp_path):
    with pytest.raises(ValueError, match=r"^`wanted` must be [^;]*; `max_error` must be a number above 0, got 0$"):
        thin(tmp_path, max_error=0, wanted=(0.2, 0.1))
