"""What is read is the commit, and what is applied is applied whole."""

from __future__ import annotations

import os

import pytest

from tools.checkout import GitTree, apply_mails, fetch_commit, git, matching, repository, require_clean, scratch
from tools.errors import CannotRun, Unavailable
from tools.mail import Envelope, format_mail
from tools.patch import Change, Patch

DATE = "Tue, 6 May 2025 07:08:09 +0530"


def mail(path: str, before: bytes, after: bytes) -> bytes:
    envelope = Envelope("A <a@example.invalid>", DATE, "Base-Commit: " + "1" * 40)
    return format_mail(Patch("f", f"Change {path}", "", {path: Change(before, after)}), envelope, 1, 1, context=3)


class TestTree:
    def test_the_dirty_work_tree_is_not_read(self, repo):
        commit = repo.commit({"a.py": b"old\n"})
        (repo.root / "a.py").write_bytes(b"dirty\n")
        (repo.root / "b.py").write_bytes(b"new\n")
        repo.git("add", "--all")
        with GitTree(repo.root, "HEAD", commit) as tree:
            assert tree.read("a.py") == b"old\n"
            assert tree.paths("**") == ["a.py"]
            assert (tree.base, tree.date, tree.is_exact) == (commit, DATE, True)

    def test_an_older_commit_is_read_as_it_was(self, repo):
        repo.commit({"a.py": b"1\n"})
        newest = repo.commit({"a.py": b"2\n", "x.bin": bytes(range(256))})
        with GitTree(repo.root, "HEAD~1", newest) as tree:
            assert tree.read("a.py") == b"1\n"
            assert not tree.is_exact
        with GitTree(repo.root, "main", newest) as tree:
            assert tree.read("x.bin") == bytes(range(256))
            assert tree.read("a.py") == b"2\n"

    def test_modes_are_kept_and_links_are_no_files(self, repo):
        (repo.root / "run.py").write_bytes(b"x\n")
        (repo.root / "run.py").chmod(0o755)
        (repo.root / "link.py").symlink_to("run.py")
        repo.commit({"a.py": b"y\n"})
        with GitTree(repo.root, "HEAD", "") as tree:
            assert tree.paths("*.py") == ["a.py", "run.py"]
            assert (tree.mode("run.py"), tree.mode("a.py")) == ("100755", "100644")

    def test_a_bare_repository_will_do(self, repo, make_repo):
        repo.commit({"a.py": b"1\n"})
        bare = repo.root.parent / "bare"
        repo.git("clone", "--quiet", "--bare", ".", str(bare))
        with GitTree(bare, "HEAD", "") as tree:
            assert tree.read("a.py") == b"1\n"

    def test_repository_variables_of_the_caller_do_not_count(self, repo, make_repo, monkeypatch):
        repo.commit({"a.py": b"1\n"})
        other = make_repo("other")
        other.commit({"b.py": b"2\n"})
        monkeypatch.setenv("GIT_DIR", str(other.root / ".git"))
        with GitTree(repo.root, "HEAD", "") as tree:
            assert tree.paths("**") == ["a.py"]
            assert tree.read("a.py") == b"1\n"

    def test_an_unknown_file_and_revision_are_said_to_be_so(self, repo):
        repo.commit({"a.py": b"1\n"})
        with GitTree(repo.root, "HEAD", "") as tree, pytest.raises(FileNotFoundError, match=r"b\.py is not in"):
            tree.read("b.py")
        with pytest.raises(CannotRun, match="'nowhere'; fetch it"):
            GitTree(repo.root, "nowhere", "")

    def test_a_source_must_be_the_root_of_a_checkout(self, repo, tmp_path):
        repo.commit({"sub/a.py": b"1\n"})
        with pytest.raises(CannotRun, match=r"lies inside one; go up \.\./"):
            repository(repo.root / "sub")
        (tmp_path / "plain").mkdir()
        with pytest.raises(CannotRun, match="which git does not know"):
            repository(tmp_path / "plain")
        with pytest.raises(CannotRun, match="must be a folder"):
            repository(tmp_path / "missing")

    def test_a_machine_without_git_is_told_so(self, repo, monkeypatch):
        monkeypatch.setenv("PATH", "")
        with pytest.raises(CannotRun, match=r"git and the folder .* must both be there"):
            git(repo.root, "status")

    def test_an_object_that_is_gone_is_said_to_be_so(self, repo):
        repo.commit({"a.py": b"1\n"})
        blob = repo.git("rev-parse", "HEAD:a.py").strip()
        (repo.root / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
        with (
            GitTree(repo.root, "HEAD", "") as tree,
            pytest.raises(CannotRun, match=r"git must hand out a\.py of .*missing"),
        ):
            tree.read("a.py")


def test_globs_stay_inside_a_folder_unless_told_otherwise():
    paths = ["a.py", "x/a.py", "x/y/a.py", "x/y/b.txt", "xa.py"]
    assert matching(paths, ["*.py"]) == ["a.py", "xa.py"]
    assert matching(paths, ["x/**/*.py"]) == ["x/a.py", "x/y/a.py"]
    assert matching(paths, ["**"]) == sorted(paths)
    assert matching(paths, ["x/?/b.txt", "a.py"]) == ["a.py", "x/y/b.txt"]


class TestFetch:
    def test_one_commit_is_fetched_and_then_used_again(self, repo, tmp_path):
        first = repo.commit({"a.py": b"1\n"})
        repo.commit({"a.py": b"2\n"})
        folder = fetch_commit(str(repo.root), first, tmp_path / "cache")
        assert git(folder, "rev-list", "--count", first).strip() == b"1"
        (repo.root / ".git").rename(repo.root / "gone")
        with GitTree(fetch_commit(str(repo.root), first, tmp_path / "cache"), first, first) as tree:
            assert tree.read("a.py") == b"1\n"

    def test_a_cache_that_lacks_the_commit_is_filled(self, repo, tmp_path):
        first = repo.commit({"a.py": b"1\n"})
        fetch_commit(str(repo.root), first, tmp_path / "cache")
        second = repo.commit({"a.py": b"2\n"})
        with GitTree(fetch_commit(str(repo.root), second, tmp_path / "cache"), second, second) as tree:
            assert tree.read("a.py") == b"2\n"

    def test_what_cannot_be_fetched_is_unavailable(self, tmp_path):
        with pytest.raises(Unavailable, match="could not be fetched"):
            fetch_commit(str(tmp_path / "nothing"), "1" * 40, tmp_path / "cache")


class TestScratch:
    def test_bytes_and_modes_go_in_as_they_are(self):
        files = {"d/a.py": ("100755", b"a\r\n\xff\n"), "b.py": ("100644", b"b")}
        with scratch(files, DATE) as clean:
            shown = clean.git("ls-tree", "-r", "HEAD").decode().split("\n")
            assert shown[1].startswith("100755")
            assert clean.git("cat-file", "blob", "HEAD:d/a.py") == b"a\r\n\xff\n"

    def test_the_users_settings_do_not_count(self, tmp_path, monkeypatch):
        (tmp_path / "config").write_text(
            "[core]\n\tautocrlf = true\n[commit]\n\tgpgsign = true\n[user]\n\tuseConfigOnly = true\n"
        )
        monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "config"))
        with scratch({"a.py": ("100644", b"a\r\n")}, DATE) as clean:
            clean.commit_mails([mail("a.py", b"a\r\n", b"b\r\n")])
            assert clean.git("cat-file", "blob", "HEAD:a.py") == b"b\r\n"

    def test_a_mail_that_does_not_fit_leaves_nothing_in_progress(self):
        with scratch({"a.py": ("100644", b"a\n")}, DATE) as clean:
            with pytest.raises(CannotRun, match="patch does not apply"):
                clean.commit_mails([mail("a.py", b"other\n", b"b\n")])
            clean.commit_mails([mail("a.py", b"a\n", b"b\n")])
            assert (clean.root / "a.py").read_bytes() == b"b\n"

    def test_it_is_gone_afterwards(self):
        with scratch({}, DATE) as clean:
            root = clean.root
        assert not root.exists()


@pytest.mark.usefixtures("identity")
class TestApply:
    def test_each_mail_becomes_a_commit_on_a_new_branch(self, repo):
        base = repo.commit({"a.py": b"a\n", "b.py": b"b\n"})
        apply_mails(repo.root, [mail("a.py", b"a\n", b"A\n"), mail("b.py", b"b\n", b"B\n")], "fix", ["a.py", "b.py"])
        assert repo.git("symbolic-ref", "--short", "HEAD").strip() == "fix"
        assert repo.git("log", "--format=%s", f"{base}..fix").split("\n")[:2] == ["Change b.py", "Change a.py"]
        assert (repo.read("a.py"), repo.read("b.py")) == (b"A\n", b"B\n")
        assert repo.git("status", "--porcelain") == ""

    def test_carriage_returns_and_odd_bytes_stay(self, repo):
        before, after = b"a\r\n\xe9 \r\nb\n", b"A\r\n\xe9 \r\nb\n"
        repo.commit({"a.py": before})
        repo.git("config", "apply.whitespace", "fix")
        apply_mails(repo.root, [mail("a.py", before, after)], "fix", ["a.py"])
        assert repo.read("a.py") == after

    def test_all_or_nothing(self, repo):
        repo.commit({"a.py": b"a\n", "b.py": b"b\n"})
        before = repo.git("for-each-ref"), repo.git("worktree", "list"), repo.git("status", "--porcelain", "--branch")
        with pytest.raises(CannotRun, match="patch does not apply"):
            apply_mails(repo.root, [mail("a.py", b"a\n", b"A\n"), mail("b.py", b"other\n", b"B\n")], "fix", ["a.py"])
        assert (
            repo.git("for-each-ref"),
            repo.git("worktree", "list"),
            repo.git("status", "--porcelain", "--branch"),
        ) == before
        assert repo.read("a.py") == b"a\n"

    def test_untracked_files_stay(self, repo):
        repo.commit({"a.py": b"a\n"})
        (repo.root / "mine.txt").write_text("x")
        require_clean(repo.root)
        apply_mails(repo.root, [mail("a.py", b"a\n", b"A\n")], "fix", ["a.py"])
        assert repo.read("mine.txt") == b"x"

    def test_a_branch_that_is_there_or_cannot_be_is_refused(self, repo):
        repo.commit({"a.py": b"a\n"})
        with pytest.raises(CannotRun, match="main is there already"):
            apply_mails(repo.root, [mail("a.py", b"a\n", b"A\n")], "main", ["a.py"])
        with pytest.raises(CannotRun, match="a name that git allows"):
            apply_mails(repo.root, [mail("a.py", b"a\n", b"A\n")], "a..b", ["a.py"])

    @pytest.mark.skipif(os.geteuid() == 0, reason="the administrator may write everywhere")
    def test_a_read_only_folder_is_refused_before_anything_happens(self, repo):
        repo.commit({"d/a.py": b"a\n"})
        (repo.root / "d").chmod(0o500)
        with pytest.raises(CannotRun, match=r"must be writable.*d/a\.py"):
            apply_mails(repo.root, [mail("d/a.py", b"a\n", b"A\n")], "fix", ["d/a.py"])
        (repo.root / "d").chmod(0o700)
        assert repo.git("branch", "--list", "fix") == ""

    def test_uncommitted_changes_are_refused(self, repo):
        repo.commit({"a.py": b"a\n", "b.py": b"b\n"})
        (repo.root / "a.py").write_bytes(b"mine\n")
        with pytest.raises(CannotRun, match=r"got 1: a\.py; commit or stash"):
            require_clean(repo.root)
        repo.git("add", "a.py")
        with pytest.raises(CannotRun, match="no uncommitted changes"):
            require_clean(repo.root)

    def test_a_half_applied_series_is_refused(self, repo):
        repo.commit({"a.py": b"a\n"})
        repo.git("am", stdin=mail("a.py", b"other\n", b"b\n"), check=False)
        with pytest.raises(CannotRun, match="in the middle of git am or a rebase"):
            require_clean(repo.root)
        repo.git("am", "--abort")
        require_clean(repo.root)

    def test_a_merge_in_progress_is_refused(self, repo):
        repo.commit({"a.py": b"a\n"})
        repo.git("switch", "--quiet", "--create", "side")
        repo.commit({"a.py": b"b\n"})
        repo.git("switch", "--quiet", "main")
        repo.commit({"a.py": b"c\n"})
        repo.git("merge", "side", check=False)
        with pytest.raises(CannotRun, match="in the middle of a merge"):
            require_clean(repo.root)
        repo.git("merge", "--abort")
        repo.git("rebase", "side", check=False)
        with pytest.raises(CannotRun, match="in the middle of"):
            require_clean(repo.root)

    def test_a_bare_repository_has_no_tree_to_change(self, repo, tmp_path):
        repo.commit({"a.py": b"a\n"})
        repo.git("clone", "--quiet", "--bare", ".", str(tmp_path / "bare"))
        with pytest.raises(CannotRun, match="bare repository"):
            require_clean(tmp_path / "bare")
