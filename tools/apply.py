"""A series onto a checkout: generated from the checkout's own commit, committed on a new branch, all or nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .catalog import Upstream
from .checkout import GitTree, apply_mails, repository, require_clean
from .errors import CannotRun
from .generate import Generated, generate


@dataclass(frozen=True)
class Applied:
    """What became of a checkout. `branch` is empty if there was nothing to commit."""

    made: Generated
    branch: str
    num_commits: int


def apply_series(upstream: Upstream, target: Path, name: str | None = None, branch: str | None = None) -> Applied:
    """Commits a series, and those that it stands on, on a new branch of `target` and switches to it.

    Raises: CannotRun if the target is no clean checkout, has no commit, or takes no patches; it then stays as it was.
    """
    root = repository(target)
    require_clean(root)
    with GitTree(root, "HEAD", upstream.base) as tree:
        if not tree.paths(*upstream.globs):
            raise CannotRun(f"{target} must be a checkout of {upstream.name}: it has no file like {upstream.globs[0]}")
        made = generate(upstream, tree, name)
        mails = made.patches(context=3)
    if not mails:
        return Applied(made, "", 0)
    branch = branch or f"applied-updates/{made.series.name}"
    apply_mails(root, mails, branch, made.touched())
    return Applied(made, branch, len(mails))
