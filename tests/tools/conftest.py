"""Repositories to work on, made anew for each test and independent of the user's settings."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

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
    return lambda name="repo": Repo(tmp_path / name)


@pytest.fixture
def repo(make_repo) -> Repo:
    """An empty repository."""
    return make_repo()


@pytest.fixture
def identity(monkeypatch: pytest.MonkeyPatch) -> None:
    """A committer for git commands that the tools run."""
    for name, value in IDENTITY.items():
        monkeypatch.setenv(name, value)
