"""Git: the text of a checkout at a commit, a clean tree to try patches on, and patches applied to a fork.

A work tree is never read: what counts is the commit.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

from .errors import CannotRun, Unavailable

_REPOSITORY_VARIABLES = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_OBJECT_DIRECTORY")
_ISOLATED = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
_EXACT = ("-c", "apply.whitespace=nowarn", "-c", "core.safecrlf=false", "-c", "am.threeWay=false")
_IN_PROGRESS = {
    "rebase-apply": "git am or a rebase",
    "rebase-merge": "a rebase",
    "MERGE_HEAD": "a merge",
    "CHERRY_PICK_HEAD": "a cherry-pick",
    "REVERT_HEAD": "a revert",
}


class GitError(CannotRun):
    """A git command that failed; `said` is what git itself had to say."""

    def __init__(self, message: str, said: str = "") -> None:
        super().__init__(f"{message}: {said}" if said else message)
        self.said = said


def git(root: Path, *args: str, env: Mapping[str, str] | None = None, stdin: bytes | None = None) -> bytes:
    """What `git ARGS` prints in `root`, in the C locale and whatever repository variables the caller has set.

    Raises: GitError if it fails or if there is no git.
    """
    try:
        done = subprocess.run(
            ["git", *args],
            cwd=root,
            env=_environment() | dict(env or {}),
            input=stdin,
            capture_output=True,
            check=False,
        )
    except FileNotFoundError as error:
        raise GitError(f"git and the folder {root} must both be there: {error}") from error
    if done.returncode != 0:
        said = (done.stderr or done.stdout).decode(errors="replace").strip()
        raise GitError(f"`git {' '.join(args[:6])}` failed in {root}", said)
    return done.stdout


def _environment() -> dict[str, str]:
    """The caller's environment without what would point git at another repository."""
    clean = {name: value for name, value in os.environ.items() if name not in _REPOSITORY_VARIABLES}
    return clean | {"LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0"}


class GitTree:
    """The files of a repository at one commit (see `patch.Tree`). Close it, or use it in a `with` block."""

    def __init__(self, root: Path, revision: str, base: str) -> None:
        self.root = repository(root)
        try:
            self.base = git(self.root, "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}").decode().strip()
        except GitError:
            advice = "commit something first" if revision == "HEAD" else "fetch it, or give another one with --base"
            raise CannotRun(f"the revision must name a commit that {root} has, got {revision!r}; {advice}") from None
        self.date = git(self.root, "show", "--no-patch", "--format=%cD", self.base).decode().strip()
        self.is_exact = self.base == base
        self._batch: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> GitTree:
        return self

    def __exit__(self, *_: object) -> None:
        if self._batch:
            self._batch.communicate()
            self._batch = None

    @cached_property
    def _entries(self) -> dict[str, tuple[str, str]]:
        """Path -> mode and blob id of all plain files; no links, no submodules."""
        entries = {}
        for line in (
            git(self.root, "ls-tree", "-r", "-z", "--full-tree", self.base).decode("utf-8", "replace").split("\0")
        ):
            if line.startswith("100"):
                info, path = line.split("\t", 1)
                mode, _, blob = info.split()
                entries[path] = (mode, blob)
        return entries

    def read(self, path: str) -> bytes:
        """The bytes of a file at the commit. Raises: FileNotFoundError."""
        if path not in self._entries:
            raise FileNotFoundError(f"{path} is not in {self.base}")
        if self._batch is None:
            command = ["git", "cat-file", "--batch"]
            self._batch = subprocess.Popen(
                command, cwd=self.root, env=_environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
        assert self._batch.stdin and self._batch.stdout
        self._batch.stdin.write(self._entries[path][1].encode() + b"\n")
        self._batch.stdin.flush()
        header = self._batch.stdout.readline().split()
        if len(header) != 3:
            raise GitError(f"git must hand out {path} of {self.base}, but it says {b' '.join(header).decode()!r}")
        return self._batch.stdout.read(int(header[2]) + 1)[:-1]

    def mode(self, path: str) -> str:
        """The file's mode as git writes it. Raises: KeyError."""
        return self._entries[path][0]

    def paths(self, *globs: str) -> list[str]:
        """All files that match any of the globs, sorted; `**/` matches any number of folders."""
        return matching(self._entries, globs)


def matching(paths: Iterable[str], globs: Sequence[str]) -> list[str]:
    """The paths that one of the globs matches as a whole, sorted. `*` stays inside a folder, `**/` does not."""
    parts = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    pattern = "|".join(
        "".join(parts.get(piece, re.escape(piece)) for piece in re.split(r"(\*\*/|\*\*|\*|\?)", glob))
        for glob in globs
    )
    matches = re.compile(pattern).fullmatch
    return sorted(path for path in paths if matches(path))


def repository(folder: Path) -> Path:
    """The repository that `folder` is the root of (a work tree's root, or a bare repository).

    Raises: CannotRun if it is none.
    """
    if not folder.is_dir():
        raise CannotRun(f"the source must be a folder that holds a git checkout, got {folder}")
    try:
        top = git(folder, "rev-parse", "--show-cdup").decode().strip()
    except GitError as error:
        raise CannotRun(
            f"the source must be a git checkout, got {folder}, which git does not know: {error.said}"
        ) from None
    if top:
        raise CannotRun(
            f"the source must be the root of a git checkout, got {folder}, which lies inside one; go up {top}"
        )
    return folder.resolve()


def fetch_commit(url: str, commit: str, folder: Path) -> Path:
    """A bare repository at `folder` that holds `commit` of `url`; fetched once, without history.

    Raises: Unavailable if it is not there and cannot be fetched.
    """
    if (folder / "HEAD").is_file():
        try:
            git(folder, "cat-file", "-e", f"{commit}^{{commit}}")
            return folder
        except GitError:
            pass
    folder.mkdir(parents=True, exist_ok=True)
    git(folder, "init", "--quiet", "--bare", ".")
    slow = ("-c", "http.lowSpeedLimit=1000", "-c", "http.lowSpeedTime=20")
    try:
        git(folder, *slow, "fetch", "--quiet", "--no-tags", "--depth=1", url, commit)
    except GitError as error:
        raise Unavailable(f"{url} could not be fetched: {error.said or error}") from None
    return folder


class Scratch:
    """A throw-away repository that holds a few files of a tree and nothing else; the user's settings do not count."""

    def __init__(self, root: Path, date: str) -> None:
        self.root = root
        name, address = "scratch", "scratch@accelerate-ext.invalid"
        self._env = _ISOLATED | {"GIT_AUTHOR_NAME": name, "GIT_AUTHOR_EMAIL": address, "GIT_AUTHOR_DATE": date}
        self._env |= {"GIT_COMMITTER_NAME": name, "GIT_COMMITTER_EMAIL": address, "GIT_COMMITTER_DATE": date}

    def git(self, *args: str, stdin: bytes | None = None) -> bytes:
        """As `git`, in this repository. Raises: GitError."""
        return git(self.root, *_EXACT, *args, env=self._env, stdin=stdin)

    def tree(self) -> str:
        """The id of the tree that is staged."""
        return self.git("write-tree").decode().strip()

    def reset(self) -> None:
        """Back to the files as they were given."""
        self.git("reset", "--quiet", "--hard", "base")
        self.git("clean", "--quiet", "-fdx")

    def apply_exactly(self, diff: bytes) -> None:
        """Applies a diff without context, with `git apply --unidiff-zero`. Raises: GitError if it does not fit."""
        self.git("apply", "--unidiff-zero", "--index", "-", stdin=diff)

    def commit_mails(self, mails: Sequence[bytes]) -> None:
        """Commits mails with plain `git am`. Raises: GitError if one does not fit; then none is committed."""
        if not mails:
            return
        try:
            self.git("am", "--quiet", "--keep-cr", stdin=b"".join(mails))
        except GitError:
            self.git("am", "--abort")
            raise


@contextmanager
def scratch(files: Mapping[str, tuple[str, bytes]], date: str) -> Iterator[Scratch]:
    """A scratch repository with these files (path -> mode and bytes) in one commit, gone after the block."""
    with tempfile.TemporaryDirectory(prefix="applied-updates-") as folder:
        repo = Scratch(Path(folder), date)
        repo.git("init", "--quiet", "--template=", "--object-format=sha1", ".")
        for path, (mode, data) in files.items():
            target = repo.root / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
            target.chmod(0o755 if mode == "100755" else 0o644)
        (repo.root / ".git" / "info").mkdir(exist_ok=True)
        (repo.root / ".git" / "info" / "attributes").write_text("* -text -filter -ident\n")
        repo.git("add", "--all", "--force", ".")
        repo.git("commit", "--quiet", "--allow-empty", "--message=base")
        repo.git("tag", "base")
        yield repo


def require_clean(root: Path) -> None:
    """Raises: CannotRun if a patch series could not be put onto this checkout's HEAD and undone without loss."""
    if git(root, "rev-parse", "--is-bare-repository").strip() == b"true":
        raise CannotRun(f"--to must be a checkout with a work tree, got the bare repository {root}")
    for name, what in _IN_PROGRESS.items():
        if (root / git(root, "rev-parse", "--git-path", name).decode().strip()).exists():
            raise CannotRun(
                f"{root} must not be in the middle of {what}; finish or abort that first (git status tells)"
            )
    changed = git(root, "status", "--porcelain", "--untracked-files=no").decode(errors="replace").splitlines()
    if changed:
        listed = ", ".join(line[3:] for line in changed[:5]) + (", ..." if len(changed) > 5 else "")
        raise CannotRun(f"{root} must have no uncommitted changes, got {len(changed)}: {listed}; commit or stash them")


def apply_mails(root: Path, mails: Sequence[bytes], branch: str, touched: Iterable[str]) -> str:
    """Puts one commit a mail on a new branch and switches to it: all of them, or nothing at all. Returns its tip.

    The commits are made in a work tree of their own, so that `root` never shows half a series.
    Raises: CannotRun if the branch exists, a mail does not apply or the files cannot be written.
    """
    try:
        git(root, "check-ref-format", "--branch", branch)
    except GitError:
        raise CannotRun(f"--branch must be a name that git allows, got {branch!r}") from None
    if git(root, "for-each-ref", f"refs/heads/{branch}"):
        raise CannotRun(f"the branch must be a new one, but {branch} is there already; choose another with --branch")
    locked = sorted({path for path in touched if not os.access((root / path).parent, os.W_OK)})
    if locked:
        raise CannotRun(f"the checkout must be writable, but these files cannot be replaced: {', '.join(locked)}")
    with tempfile.TemporaryDirectory(prefix="applied-updates-") as folder:
        side = Path(folder) / "tree"
        git(root, "worktree", "add", "--quiet", "--detach", str(side), "HEAD")
        try:
            git(side, *_EXACT, "am", "--quiet", "--keep-cr", stdin=b"".join(mails))
            tip = git(side, "rev-parse", "HEAD").decode().strip()
        finally:
            git(root, "worktree", "remove", "--force", str(side))
    git(root, "switch", "--quiet", "--create", branch, tip)
    return tip
