"""The series is made from other releases too, or says what it refuses in them."""

from __future__ import annotations

import difflib

import pytest

from tools.catalog import find
from tools.release import open_release
from tools.site import Outcome
from tools.source import Source
from tools.trainer.paths import CALLBACKS, TRAINER
from tools.trainer.released_copy import changed_files
from tools.trainer.series import build

pytestmark = [pytest.mark.network, pytest.mark.xdist_group("trainer-releases")]


def make(version: str):
    with open_release(find("transformers"), version) as tree:
        return build(tree)


@pytest.fixture(scope="module")
def pinned():
    return make("5.24.0")


def taken_and_added(patch) -> list[tuple[str, list[str]]]:
    """What a patch changes, without where."""
    changes = []
    for path, change in patch.changes.items():
        lines = difflib.unified_diff(change.before.decode().splitlines(), change.after.decode().splitlines(), n=0)
        changes.append((path, [line for line in lines if line[:1] in "+-" and line[:3] not in ("+++", "---")]))
    return changes


@pytest.mark.parametrize("version", ["5.23.0", "5.20.1", "5.17.0"])
def test_the_patches_of_releases_of_the_same_shape_change_the_same_lines(version, pinned):
    series = make(version)
    assert series.refused == {}
    assert [patch.name for patch in series.patches] == [patch.name for patch in pinned.patches]
    for patch, other in zip(series.patches, pinned.patches, strict=True):
        assert taken_and_added(patch) == taken_and_added(other)
    for path, data in changed_files(series).items():
        assert Source.from_bytes(data).tree, path


@pytest.mark.parametrize("version", ["5.0.0", "4.57.6"])
def test_releases_with_the_loop_in_one_method_are_refused_as_a_whole(version):
    series = make(version)
    assert series.patches == ()
    assert TRAINER in series.refused
    assert CALLBACKS not in series.refused, "what is there is found"
    sites = [site for sites in series.refused.values() for site in sites]
    assert {site.outcome for site in sites} == {Outcome.REFUSED}
    assert any("`_run_epoch`" in site.message for site in sites)
    assert any("`_init_training_state`" in site.message for site in sites)
