"""Repositories to work on, made anew for each test and independent of the user's settings."""

from __future__ import annotations

import difflib
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

from tools.catalog import Upstream
from tools.patch import Change, Patch, Series
from tools.rewrite import Rewrite
from tools.site import Outcome, Site

IDENTITY = {
    "GIT_AUTHOR_NAME": "a",
    "GIT_AUTHOR_EMAIL": "a@example.invalid",
    "GIT_COMMITTER_NAME": "c",
    "GIT_COMMITTER_EMAIL": "c@example.invalid",
    "GIT_AUTHOR_DATE": "Tue, 6 May 2025 07:08:09 +0530",
    "GIT_COMMITTER_DATE": "Tue, 6 May 2025 07:08:09 +0530",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
}


class Repo:
    """A git repository with short commands."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(parents=True, exist_ok=True)
        self.git("init", "--quiet", "--initial-branch=main", ".")

    def git(self, *args: str, stdin: bytes | None = None, check: bool = True) -> str:
        done = subprocess.run(
            ["git", *args], cwd=self.root, env=os.environ | IDENTITY, input=stdin, capture_output=True, check=False
        )
        if check and done.returncode:
            raise AssertionError(f"git {args}: {done.stderr.decode()}")
        return done.stdout.decode()

    def commit(self, files: dict[str, bytes], message: str = "commit") -> str:
        for path, data in files.items():
            (self.root / path).parent.mkdir(parents=True, exist_ok=True)
            (self.root / path).write_bytes(data)
        self.git("add", "--all", "--force", ".")
        self.git("commit", "--quiet", "--message", message)
        return self.git("rev-parse", "HEAD").strip()

    def read(self, path: str) -> bytes:
        return (self.root / path).read_bytes()


@pytest.fixture
def make_repo(tmp_path: Path):
    """Makes a repository under a name."""
    return lambda name="repo": Repo(tmp_path / "repositories" / name)


@pytest.fixture
def repo(make_repo) -> Repo:
    """An empty repository."""
    return make_repo()


@pytest.fixture
def identity(monkeypatch: pytest.MonkeyPatch) -> None:
    """A committer for git commands that the tools run."""
    for name, value in IDENTITY.items():
        monkeypatch.setenv(name, value)


SAMPLE = {
    "scripts/one.py": b"".join(b"line %d\n" % i for i in range(1, 41)),
    "scripts/two.py": b"alpha\nbeta\ngamma\n",
    "other.txt": b"not a script\n",
}


def _replaced(tree, path: str, old: bytes, new: bytes, name: str) -> tuple[Patch | None, Site]:
    """A patch that puts one text for another, or none with the reason."""
    try:
        before = tree.read(path)
    except FileNotFoundError:
        return None, Site(1, 1, "file", "missing-file", Outcome.REFUSED, "no such file")
    if new in before:
        return None, Site(before[: before.index(new)].count(b"\n") + 1, 1, "text", "done", Outcome.RIGHT, "is there")
    if old not in before:
        return None, Site(1, 1, "text", "unclear", Outcome.REFUSED, "the text is not there")
    line = before[: before.index(old)].count(b"\n") + 1
    site = Site(line, 1, "text", "replaced", Outcome.REWRITTEN, "was wrong", line)
    change = Change(before, before.replace(old, new))
    return Patch(name, f"Fix {path}", "A reason.", {path: change}, {path: (site,)}), site


def _build(name: str, *wanted: tuple[str, bytes, bytes]):
    def build(tree) -> Series:
        made = [(path, *_replaced(tree, path, old, new, path[8:-3])) for path, old, new in wanted]
        patches = tuple(patch for _, patch, _ in made if patch)
        return Series(
            name, patches, f"Facts about {name}.", {path: (site,) for path, patch, site in made if not patch}
        )

    return build


@pytest.fixture
def sample(monkeypatch: pytest.MonkeyPatch, make_repo):
    """An upstream of two scripts with a series on each and one on top; returns its repository and its row."""
    module = types.ModuleType("tools.upstreams.sample")
    module.SERIES = {  # type: ignore[attr-defined]
        "first": _build(
            "first",
            ("scripts/one.py", b"line 20\n", b"line twenty\nand more\n"),
            ("scripts/two.py", b"beta\n", b"BETA\n"),
        ),
        "top": _build("top", ("scripts/one.py", b"line twenty\n", b"line 20, again\n")),
    }
    module.DEFAULT_SERIES = "first"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tools.upstreams.sample", module)
    repo = make_repo("sample")
    base = repo.commit(SAMPLE)
    row = Upstream(
        name="sample",
        base=base,
        globs=("scripts/*.py",),
        series=("first", "top"),
        author="A <a@example.invalid>",
        url=str(repo.root),
        after={"top": ("first",)},
    )
    return repo, row


@pytest.fixture(scope="session")
def outcome():
    """Tells what became of a text: the sites of a rewrite, then its changed lines with one line round them."""

    def tell(result: Rewrite) -> str:
        lines = []
        for site in result.sites:
            place = f"{site.line}:{site.col}" + (f" -> {site.new_line}" if site.new_line is not None else "")
            lines += [f"{place} {site.outcome.value} {site.code} ({site.kind})", f"    {site.message}"]
        texts = [data.decode().splitlines() for data in (result.before, result.after)]
        return "\n".join([*lines, *difflib.unified_diff(*texts, "before", "after", n=1, lineterm="")]) + "\n"

    return tell
