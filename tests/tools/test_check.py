"""The state of committed patches, against their base and against a source that has moved on."""

from __future__ import annotations

import shutil

import pytest

from tools import series as store
from tools.check import State, check
from tools.checkout import GitTree
from tools.generate import generate


@pytest.fixture
def recorded(sample, tmp_path):
    """A `patches/` folder with both series as the tools write them."""
    repo, row = sample
    folder = tmp_path / "patches"
    with GitTree(repo.root, row.base, row.base) as tree:
        for name in row.series:
            files = generate(row, tree, name).rendered(context=0)
            store.write(store.folder_of(folder, row.name, row.base, name), files)
    return folder


def states(sample, folder, revision: str = "") -> dict[str, tuple[State, str]]:
    repo, row = sample
    with GitTree(repo.root, revision or row.base, row.base) as tree:
        found = check(row, tree, folder)
    return {f"{verdict.series}/{verdict.file}": (verdict.state, verdict.message) for verdict in found}


def test_what_the_tools_wrote_is_current(sample, recorded):
    found = states(sample, recorded)
    assert {name: state for name, (state, _) in found.items()} == {
        "first/0001-one.patch": State.CURRENT,
        "first/0002-two.patch": State.CURRENT,
        "top/0001-one.patch": State.CURRENT,
    }


def test_an_edit_by_hand_is_stale_and_its_line_is_named(sample, recorded):
    path = recorded / "sample" / sample[1].base / "first" / "0002-two.patch"
    path.write_bytes(path.read_bytes().replace(b"A reason.", b"Another reason."))
    state, message = states(sample, recorded)["first/0002-two.patch"]
    assert (state, "line 9" in message) == (State.STALE, True)


@pytest.mark.parametrize("name", ["NOTES.md", "report.json", "series"])
def test_the_other_files_are_compared_too(sample, recorded, name):
    path = recorded / "sample" / sample[1].base / "first" / name
    path.write_bytes(path.read_bytes() + b"\n")
    found = states(sample, recorded)
    assert found[f"first/{name}"][0] is State.STALE
    assert found["first/0001-one.patch"][0] is State.CURRENT


def test_files_too_many_or_too_few_are_stale(sample, recorded):
    folder = recorded / "sample" / sample[1].base / "first"
    shutil.copy(folder / "NOTES.md", folder / "EXTRA.md")
    (folder / "0002-two.patch").unlink()
    found = states(sample, recorded)
    assert "no longer write" in found["first/EXTRA.md"][1]
    assert "write this file today" in found["first/0002-two.patch"][1]


def test_a_patch_that_does_not_apply_is_a_conflict(sample, recorded):
    path = recorded / "sample" / sample[1].base / "first" / "0002-two.patch"
    path.write_bytes(path.read_bytes().replace(b"-beta", b"-delta"))
    state, message = states(sample, recorded)["first/0002-two.patch"]
    assert (state, "patch does not apply" in message) == (State.CONFLICT, True)


def test_a_series_that_was_never_recorded_is_stale(sample, tmp_path):
    found = states(sample, tmp_path)
    assert found["first/series"] == (
        State.STALE,
        "not recorded: python -m tools generate sample --all --record",
    )


def test_a_series_that_the_catalogue_does_not_have_is_stale(sample, recorded):
    (recorded / "sample" / sample[1].base / "old").mkdir()
    assert states(sample, recorded)["old/series"] == (State.STALE, "not in the catalogue: remove it")


class TestElsewhere:
    def test_untouched_files_leave_a_patch_current(self, sample, recorded):
        sample[0].commit({"other.txt": b"changed\n"})
        assert {state for state, _ in states(sample, recorded, "HEAD").values()} == {State.CURRENT}

    def test_a_change_that_arrived_is_upstreamed(self, sample, recorded):
        repo, row = sample
        with GitTree(repo.root, row.base, row.base) as tree:
            patches = generate(row, tree, "first").series.patches
        repo.commit({"scripts/two.py": patches[1].changes["scripts/two.py"].after})
        found = states(sample, recorded, "HEAD")
        assert found["first/0002-two.patch"][0] is State.UPSTREAMED
        assert found["first/0001-one.patch"][0] is State.CURRENT

    def test_a_change_that_arrived_among_others_is_upstreamed(self, sample, recorded):
        sample[0].commit({"scripts/two.py": b"zero\nalpha\nBETA\ngamma\n"})
        state, message = states(sample, recorded, "HEAD")["first/0002-two.patch"]
        assert (state, "counts applied updates already" in message) == (State.UPSTREAMED, True)

    def test_a_file_that_moved_on_makes_a_patch_stale(self, sample, recorded):
        sample[0].commit({"scripts/two.py": b"zero\nalpha\nbeta\ngamma\n"})
        assert states(sample, recorded, "HEAD")["first/0002-two.patch"][0] is State.STALE

    def test_a_place_that_is_gone_is_a_conflict(self, sample, recorded):
        sample[0].commit({"scripts/two.py": b"alpha\n"})
        state, message = states(sample, recorded, "HEAD")["first/0002-two.patch"]
        assert (state, "refused here, first at line 1" in message) == (State.CONFLICT, True)

    def test_a_file_that_is_gone_is_a_conflict(self, sample, recorded):
        sample[0].git("rm", "--quiet", "scripts/two.py")
        sample[0].git("commit", "--quiet", "--message=gone")
        assert states(sample, recorded, "HEAD")["first/0002-two.patch"] == (
            State.CONFLICT,
            "this source has no scripts/two.py",
        )
