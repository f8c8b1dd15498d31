"""One stored average, rebuilt from the others."""

from __future__ import annotations

import pytest

from accelerate_ext.ema.check import check
from accelerate_ext.ema.header import SnapshotError


def test_check_rebuilds_a_stored_average_and_finds_the_predicted_error(known_run):
    got = check(known_run.save_all(16))
    assert (got.step, round(got.sigma_rel, 6)) == (1600, 0.10)
    assert 0.5 < got.measured_error / got.predicted_error < 2
    earlier = check(known_run.folder, step=1500, sigma_rel=0.05)
    assert earlier.source.path.name == "000000001500-0.050000.safetensors"


def test_check_notices_a_snapshot_of_something_else(known_run):
    known_run.save_all(16)
    known_run.save(1600, 0.10, tensors=known_run.average(1200, 0.10))
    assert check(known_run.folder).measured_error > 0.5


def test_check_without_anything_to_build_from_says_so(known_run):
    known_run.save(1600, 0.10)
    with pytest.raises(SnapshotError, match="needs a stored average and others"):
        check(known_run.folder)
