"""From a source to a series, and the proof that it applies."""

from __future__ import annotations

import sys
import zipfile
from dataclasses import replace

import pytest

from tools import catalog
from tools import series as store
from tools.check import check
from tools.checkout import GitTree
from tools.errors import CannotRun, Unavailable
from tools.generate import export, generate, open_source, prove, record
from tools.patch import Change, Patch, Series


@pytest.fixture
def tree(sample):
    repo, row = sample
    with GitTree(repo.root, row.base, row.base) as tree:
        yield tree


def test_the_same_source_gives_the_same_bytes(sample, make_repo):
    repo, row = sample
    with GitTree(repo.root, "HEAD", row.base) as tree:
        one = generate(row, tree).rendered(context=3)
    repo.git("clone", "--quiet", ".", str(repo.root.parent / "clone"))
    with GitTree(repo.root.parent / "clone", row.base, row.base) as tree:
        assert generate(row, tree).rendered(context=3) == one


def test_both_forms_give_the_tree_that_the_recipe_means(sample, tree, repo):
    made = generate(sample[1], tree, "first")
    upstream, _ = sample
    upstream.git("switch", "--quiet", "--create", "am")
    for name in store.order(made.rendered(context=3)):
        upstream.git("am", "--quiet", stdin=made.rendered(context=3)[name])
    assert upstream.git("rev-parse", "HEAD^{tree}:scripts") == _staged(upstream, made)
    assert prove(made)


def _staged(upstream, made) -> str:
    upstream.git("switch", "--quiet", "main")
    for diff in made.patches(context=0):
        upstream.git("apply", "--index", "--unidiff-zero", "-", stdin=diff)
    tree = upstream.git("write-tree").strip()
    return upstream.git("rev-parse", f"{tree}:scripts")


def test_a_series_on_top_is_built_on_what_the_one_below_leaves(sample, tree):
    made = generate(sample[1], tree, "top")
    assert [part.name for part in made.chain] == ["first", "top"]
    assert made.series.patches[0].changes["scripts/one.py"].before.count(b"line twenty\n") == 1
    assert len(made.patches(context=3)) == 3
    assert made.touched() == ["scripts/one.py", "scripts/two.py"]
    prove(made)


def test_a_series_that_lies_about_the_tree_is_found_out(sample, tree, monkeypatch):
    lie = Series("first", (Patch("p", "Fix", "", {"other.txt": Change(b"never\n", b"x\n")}),), "")
    monkeypatch.setitem(sys.modules["tools.upstreams.sample"].SERIES, "first", lambda _: lie)
    with pytest.raises(RuntimeError, match=r"p: other\.txt is not what the tree"):
        generate(sample[1], tree)


def test_an_unknown_series_is_answered_with_those_there_are(sample, tree):
    with pytest.raises(CannotRun, match="first, top, got 'last'"):
        generate(sample[1], tree, "last")


class TestSource:
    def test_a_checkout_is_read_at_the_pinned_commit_unless_told_otherwise(self, sample):
        repo, row = sample
        repo.commit({"scripts/two.py": b"new\n"})
        with open_source(row, repo.root) as tree:
            assert (tree.base, tree.is_exact) == (row.base, True)
        with open_source(row, repo.root, "HEAD") as tree:
            assert tree.read("scripts/two.py") == b"new\n"
            assert not tree.is_exact

    def test_the_environment_may_name_the_checkout(self, sample, monkeypatch, tmp_path):
        monkeypatch.setenv("SAMPLE_CHECKOUT", str(sample[0].root))
        with open_source(sample[1]) as tree:
            assert tree.root == sample[0].root

    def test_otherwise_the_pinned_commit_is_fetched(self, sample, monkeypatch, tmp_path):
        monkeypatch.delenv("SAMPLE_CHECKOUT", raising=False)
        monkeypatch.setattr("tools.generate.cache_folder", lambda: tmp_path / "cache")
        with open_source(sample[1]) as tree:
            assert tree.root == tmp_path / "cache" / "upstreams" / "sample"
            assert tree.read("scripts/two.py") == b"alpha\nbeta\ngamma\n"

    def test_what_cannot_be_fetched_says_how_to_name_a_checkout(self, sample, monkeypatch, tmp_path):
        monkeypatch.delenv("SAMPLE_CHECKOUT", raising=False)
        monkeypatch.setattr("tools.generate.cache_folder", lambda: tmp_path / "cache")
        (sample[0].root / ".git").rename(sample[0].root / "gone")
        with pytest.raises(Unavailable, match="give --source, or set SAMPLE_CHECKOUT"):
            open_source(sample[1])

    def test_a_wheel_may_be_named(self, sample, tmp_path):
        path = tmp_path / "x-1-py3-none-any.whl"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("scripts/one.py", "x")
        with open_source(sample[1], path) as tree:
            assert (tree.base, tree.read("scripts/one.py"), tree.is_exact) == ("1", b"x", False)

    def test_a_wheel_is_one_release(self, sample, tmp_path):
        with pytest.raises(CannotRun, match="--base must be left out"):
            open_source(sample[1], tmp_path / "x-1-py3-none-any.whl", "HEAD")


class TestWrite:
    def test_mails_go_where_they_are_wanted(self, sample, tree, tmp_path):
        row = sample[1]
        folder = export(generate(row, tree), tmp_path / "out")
        assert folder == tmp_path / "out" / "sample" / row.base / "first"
        assert b"\n line 17\n" in (folder / "0001-one.patch").read_bytes()

    def test_what_is_recorded_has_no_context(self, sample, tree, tmp_path, monkeypatch):
        monkeypatch.setattr("tools.generate.patches_folder", lambda: tmp_path)
        folder = record(generate(sample[1], tree))
        assert store.lint(store.read(folder), context=0) == []

    def test_what_breaks_the_form_of_a_series_is_not_recorded(self, sample, tree, tmp_path, monkeypatch):
        monkeypatch.setattr("tools.generate.patches_folder", lambda: tmp_path)
        made = generate(sample[1], tree)
        rendered = made.rendered(context=0)
        monkeypatch.setattr(
            type(made), "rendered", lambda self, context: {**rendered, "series": b"0001-other.patch\n"}
        )
        with pytest.raises(RuntimeError, match=r"the series must not be recorded: .*0001-other\.patch"):
            record(made)
        assert list(tmp_path.glob("sample")) == []

    def test_an_upstream_without_a_url_has_nothing_committed(self, sample, tree):
        row = replace(sample[1], url="")
        with pytest.raises(CannotRun, match="are not committed"):
            record(generate(row, tree))
        with pytest.raises(CannotRun, match="made where they are needed"):
            check(row, tree, catalog.patches_folder())

    def test_only_the_pinned_base_is_recorded(self, sample, tmp_path, monkeypatch):
        repo, row = sample
        monkeypatch.setattr("tools.generate.patches_folder", lambda: tmp_path)
        repo.commit({"new.txt": b"x"})
        with GitTree(repo.root, "HEAD", row.base) as tree, pytest.raises(CannotRun, match="only the pinned base"):
            record(generate(row, tree))
        assert list(tmp_path.glob("sample")) == []
