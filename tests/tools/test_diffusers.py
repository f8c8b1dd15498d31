"""The series on the real Diffusers repository, judged by git, by Python and by upstream's linter."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from click.testing import CliRunner

from tools import catalog
from tools import series as store
from tools.check import State, check
from tools.checkout import GitTree
from tools.cli import main
from tools.generate import generate
from tools.rewrite import rewrite
from tools.site import Outcome

CHECKOUT = os.environ.get("DIFFUSERS_CHECKOUT", "")
ROW = catalog.find("diffusers")
PILOT = "examples/text_to_image/train_text_to_image.py"
pytestmark = [
    pytest.mark.skipif(not CHECKOUT, reason="DIFFUSERS_CHECKOUT names no checkout of Diffusers"),
    pytest.mark.processes,
    pytest.mark.xdist_group("diffusers"),
]


@pytest.fixture(scope="module")
def tree():
    with GitTree(Path(CHECKOUT), ROW.base, ROW.base) as tree:
        yield tree


@pytest.fixture(scope="module")
def made(tree):
    """Each series of the upstream, generated once."""
    return {name: generate(ROW, tree, name) for name in ROW.series}


@pytest.fixture
def clone(make_repo):
    """A clone at the pinned base that shares the checkout's objects."""
    repo = make_repo("diffusers")
    repo.git("remote", "add", "origin", str(Path(CHECKOUT).resolve()))
    alternates = repo.root / ".git" / "objects" / "info" / "alternates"
    objects = subprocess.run(
        ["git", "rev-parse", "--path-format=absolute", "--git-path", "objects"],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=True,
    )
    alternates.write_text(objects.stdout)
    repo.git("checkout", "--quiet", "-B", "main", ROW.base)
    return repo


@pytest.mark.parametrize("name", ROW.series)
def test_mails_and_committed_patches_lead_to_the_same_tree(made, clone, name):
    for mail in made[name].patches(context=3):
        clone.git("am", "--quiet", stdin=mail)
    by_mail = clone.git("rev-parse", "HEAD^{tree}").strip()
    assert clone.git("status", "--porcelain") == ""
    clone.git("reset", "--quiet", "--hard", ROW.base)
    for diff in made[name].patches(context=0):
        clone.git("apply", "--index", "--unidiff-zero", "-", stdin=diff)
    assert clone.git("write-tree").strip() == by_mail
    for diff in made[name].patches(context=0):
        for path, blob in re.findall(
            rb"^diff --git a/(\S+) .*\nindex [0-9a-f]{40}\.\.([0-9a-f]{40})", diff, re.MULTILINE
        ):
            if name != "budget":  # there a later patch changes the same files
                assert clone.git("rev-parse", f":{path.decode()}").strip() == blob.decode()


@pytest.mark.parametrize("name", ROW.series)
def test_a_second_run_changes_nothing(made, clone, name):
    for diff in made[name].patches(context=0):
        clone.git("apply", "--index", "--unidiff-zero", "-", stdin=diff)
    clone.git("commit", "--quiet", "--message=all")
    with GitTree(clone.root, "HEAD", ROW.base) as tree:
        again = generate(ROW, tree, name)
    assert [patch.name for part in again.chain for patch in part.patches] == []


def test_the_same_commit_gives_the_same_bytes_from_another_place(made, clone):
    (clone.root / PILOT).write_text("dirty")
    with GitTree(clone.root, ROW.base, ROW.base) as tree:
        for name in ROW.series:
            again = generate(ROW, tree, name)
            for context in (0, 3):
                assert again.rendered(context=context) == made[name].rendered(context=context)


def test_what_is_committed_here_is_what_the_tools_write(tree):
    verdicts = check(ROW, tree, catalog.patches_folder())
    assert {verdict.state for verdict in verdicts} == {State.CURRENT}
    assert len(verdicts) > 100


def test_the_pilot_is_one_script_and_the_others_are_split_by_whose_they_are(made):
    assert made["pilot"].touched() == [PILOT]
    official, research = set(made["official"].touched()), set(made["research"].touched())
    assert PILOT in official
    assert not official & research
    assert all(path.startswith(("examples/research_projects/", "examples/community/")) for path in research)
    assert all(len(patch.changes) == 1 for part in ("official", "research") for patch in made[part].series.patches)


def test_every_guard_is_accounted_for(made):
    """The counts were taken by hand from the 92 files that use the guard: 184 tests, and what else bears on counting."""
    sites = [
        site
        for name in ("official", "research")
        for file in store.file_reports(made[name].series)
        for site in file.sites
    ]
    found = Counter((site.kind, site.code, site.outcome.value) for site in sites)
    guards = {
        ("clip guard", "clip-guard", "left"): 86,
        ("clip and step guard", "step-guard", "left"): 2,
        ("bookkeeping block", "gated", "rewritten"): 92,
        ("bookkeeping block", "unprepared-optimizer", "refused"): 2,
        ("gradient-norm log", "gradient-norm", "left"): 2,
    }
    assert sum(guards.values()) == 184
    others = {
        ("window state", "reset-added", "rewritten"): 22,
        ("window state", "never-reset", "left"): 1,
        ("unguarded counter", "gated", "rewritten"): 4,
        ("trigger outside a block", "trigger-gated", "rewritten"): 2,
        ("trigger on multiples", "multiple-crossed", "rewritten"): 3,
        ("optimizer step", "own-flag", "rewritten"): 6,
        ("scheduler step", "scheduler-gated", "rewritten"): 1,
        ("resume fast-forward", "fast-forward", "left"): 14,
        ("resume arithmetic", "resume-arithmetic", "left"): 86,
    }
    assert {key: found[key] for key in (guards | others)} == guards | others
    assert sum(count for (_, _, outcome), count in found.items() if outcome == "refused") == 2


def test_the_change_is_small(made):
    (patch,) = made["pilot"].patches(context=0)
    body = patch.split(b"\n@@ ", 1)[1].split(b"\n")[1:]
    assert sorted(line[:1] for line in body if line[:1] in (b"+", b"-")) == [b"+", b"+", b"+", b"-"]


@pytest.mark.parametrize("name", ROW.series)
def test_patched_files_compile_and_keep_their_imports(made, name):
    for patch in made[name].series.patches:
        for path, change in patch.changes.items():
            compile(change.after, path, "exec")
            imports = [
                sorted(line for line in side.split(b"\n") if line.startswith((b"import ", b"from ")))
                for side in (change.before, change.after)
            ]
            assert imports[0] == imports[1]


@pytest.mark.network
def test_patched_files_pass_upstreams_linter(made, clone, tmp_path):
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "--target",
            str(tmp_path / "ruff"),
            "ruff==0.9.10",
        ],
        check=True,
        capture_output=True,
    )
    ruff = [str(tmp_path / "ruff" / "bin" / "ruff")]

    def complaints() -> tuple[set[str], set[str]]:
        paths = made["budget"].touched()
        check = subprocess.run(
            [*ruff, "check", "--output-format=concise", "--no-cache", *paths],
            cwd=clone.root,
            capture_output=True,
            text=True,
            check=False,
        )
        form = subprocess.run(
            [*ruff, "format", "--check", "--no-cache", *paths],
            cwd=clone.root,
            capture_output=True,
            text=True,
            check=False,
        )
        found = {re.sub(r":\d+:\d+:", ":", line) for line in check.stdout.splitlines() if ".py:" in line}
        return found, {line for line in form.stdout.splitlines() if line.startswith("Would reformat")}

    before = complaints()
    for diff in made["budget"].patches(context=0):
        clone.git("apply", "--index", "--unidiff-zero", "-", stdin=diff)
    after = complaints()
    assert after[0] - before[0] == set()
    assert after[1] - before[1] == set()


@pytest.mark.parametrize("name", ROW.series)
def test_a_report_on_what_a_series_wrote_has_nothing_to_do_that_the_base_had_not(made, tree, name):
    written = {
        path: change.after
        for part in made[name].chain
        for patch in part.patches
        for path, change in patch.changes.items()
    }
    assert written
    for path, data in written.items():
        before, again = rewrite(tree.read(path)), rewrite(data)
        assert again.after == data, path
        assert [site for site in again.sites if site.outcome is Outcome.REWRITTEN] == [], path
        refused = [Counter(s.code for s in r.sites if s.outcome is Outcome.REFUSED) for r in (before, again)]
        assert not refused[1] - refused[0], path


def test_an_extended_budget_is_right(made):
    for patch in made["budget"].series.patches:
        for path, change in patch.changes.items():
            found = [site.code for site in rewrite(change.after).sites if site.kind == "epoch budget"]
            assert set(found) <= {"epoch-budget-already"}, path


class TestFork:
    """A fork whose lines next to the change are other ones."""

    @pytest.fixture
    def fork(self, clone):
        text = clone.read(PILOT).decode()
        for old, new in (
            ("optimizer.zero_grad()", "optimizer.zero_grad(True)"),
            ('device="cuda", n', 'device="fork", n'),
        ):
            assert text.count(old) == 1
            text = text.replace(old, new)
        clone.commit({PILOT: text.encode()}, "fork")
        return clone

    def test_the_mail_merges_by_its_blob_ids(self, made, fork):
        (mail,) = made["pilot"].patches(context=3)
        with pytest.raises(AssertionError, match="patch does not apply"):
            fork.git("am", stdin=mail)
        fork.git("am", "--abort")
        fork.git("am", "-3", stdin=mail)
        text = fork.read(PILOT)
        assert text.count(b"and not accelerator.optimizer_step_was_skipped") == 1
        assert text.count(b"optimizer.zero_grad(True)") == text.count(b'device="fork"') == 1

    @pytest.mark.usefixtures("identity")
    def test_apply_generates_from_the_forks_own_commit(self, fork):
        result = CliRunner().invoke(main, ["apply", "diffusers", "--to", str(fork.root)])
        assert result.exit_code == 0, result.output
        assert (
            fork.git("log", "--format=%s", "-1").strip()
            == "Fix counting of skipped optimizer steps in train_text_to_image.py"
        )
        assert b'device="fork"' in fork.read(PILOT)
        assert b"not accelerator.optimizer_step_was_skipped" in fork.read(PILOT)

    @pytest.mark.usefixtures("identity")
    def test_apply_says_what_is_not_there_any_more(self, fork):
        fork.git("rm", "--quiet", PILOT)
        fork.git("commit", "--quiet", "--message=gone")
        result = CliRunner().invoke(main, ["apply", "diffusers", "--to", str(fork.root)])
        assert result.exit_code == 1
        assert f"{PILOT}:1:1: missing-file: refused" in result.stderr
