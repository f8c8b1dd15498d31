"""The suite on patched and on unpatched copies of the installed releases."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tools.trainer.released_copy import changed_files

pytestmark = pytest.mark.processes

NUM_PATCHES = 7


@pytest.mark.xdist_group("trainer-patched")
def test_every_case_passes_on_the_patched_releases(run_suite, patched):
    session = run_suite(patched, "--tb=short")
    assert session.having("failure") + session.having("error") == [], session.output
    assert len(session.having("passed")) > 250


@pytest.mark.xdist_group("trainer-unpatched")
def test_each_case_about_skips_fails_on_the_unpatched_releases(run_suite):
    session = run_suite(None, "-m", "not finite", "--tb=no", "--show-capture=no")
    assert session.having("passed") == []
    assert session.having("error") == []
    assert len(session.having("failure")) > 200


@pytest.mark.xdist_group("trainer-unpatched")
def test_fused_optimizers_need_the_patched_accelerate_too(run_suite, copy_of, series):
    folder = copy_of(transformers=changed_files(series["transformers"]))
    session = run_suite(folder, "-m", "accelerate", "--tb=no", "--show-capture=no")
    assert session.having("passed") == []
    assert len(session.having("failure")) > 10


@pytest.fixture(scope="module")
def finite_runs(run_suite, tmp_path_factory):
    """What the runs without skips leave with the packages in a folder: each case's record."""

    def record(folder: Path | None) -> dict[str, dict]:
        records = tmp_path_factory.mktemp("records")
        session = run_suite(folder, "case_finite.py", "--tb=short", records=records)
        assert session.having("failure") + session.having("error") == [], session.output
        return {path.stem: json.loads(path.read_text()) for path in sorted(records.iterdir())}

    return record


@pytest.fixture(scope="module")
def unpatched_runs(finite_runs):
    return finite_runs(None)


@pytest.mark.xdist_group("trainer-finite")
@pytest.mark.parametrize("count", range(1, NUM_PATCHES + 1))
def test_runs_without_skips_are_the_same_to_the_bit_from_each_patch_on(
    count, series, copy_of, finite_runs, unpatched_runs
):
    patches = series["transformers"].patches
    assert len(patches) == NUM_PATCHES
    files = {path: change.after for patch in patches[:count] for path, change in patch.changes.items()}
    accelerate = changed_files(series["accelerate"]) if count == NUM_PATCHES else {}
    found = finite_runs(copy_of(transformers=files, accelerate=accelerate))
    assert len(unpatched_runs) > 20
    assert found == unpatched_runs
