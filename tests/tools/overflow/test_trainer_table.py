"""The Trainer on an unpatched and on a patched release: 5 applied of 6 with global_step 6, against 6 of 6."""

from __future__ import annotations

import fnmatch
import importlib.util
from importlib.metadata import version
from pathlib import Path

import pytest

from tools.errors import CannotRun
from tools.overflow import trainer_table as module
from tools.overflow.launch import Job, Plan
from tools.overflow.trainer_table import trainer_table
from tools.trainer.released_copy import changed_files, patched_copy
from tools.upstreams import accelerate, transformers

pytestmark = [pytest.mark.processes, pytest.mark.xdist_group("overflow-trainer")]


class Installed:
    """The installed release of a package, as the series read it."""

    is_exact = True
    date = "Thu, 01 Jan 2026 00:00:00 +0000"

    def __init__(self, name: str) -> None:
        spec = importlib.util.find_spec(name)
        assert spec is not None and spec.submodule_search_locations
        self.package = Path(spec.submodule_search_locations[0])
        self.base = version(name)

    def read(self, path: str) -> bytes:
        return (self.package.parent / path.removeprefix("src/")).read_bytes()

    def paths(self, *globs: str) -> list[str]:
        files = sorted(path.relative_to(self.package.parent) for path in self.package.rglob("*.py"))
        names = [f"src/{path.as_posix()}" for path in files]
        return [name for name in names if any(fnmatch.fnmatch(name, glob) for glob in globs)]


@pytest.fixture(scope="module")
def patched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("patched")
    for name, upstream in (("transformers", transformers), ("accelerate", accelerate)):
        tree = Installed(name)
        series = upstream.SERIES[upstream.DEFAULT_SERIES](tree)
        assert series.patches
        patched_copy(tree.package, changed_files(series), folder)
    return folder


def test_the_table_of_the_issue(patched: Path) -> None:
    started: list[str] = []
    proof = trainer_table([], [patched], on_run=started.append)
    rows = [line.split("|")[1:-1] for line in proof.text.splitlines() if line.startswith("| ")][1:]
    numbers = {row[0].strip(): tuple(cell.strip() for cell in row[1:]) for row in rows}
    assert numbers == {
        "unpatched release, adamw_torch": ("6", "5", "-", "6", "0"),
        "patched release, adamw_torch": ("7", "6", "-", "6", "0"),
        "unpatched release, adamw_torch_fused": ("6", "5", "-", "6", "0"),
        "patched release, adamw_torch_fused": ("7", "6", "-", "6", "0"),
    }
    assert started == list(numbers)
    assert proof.is_right
    assert "unpatched release, adamw_torch: global_step moved on a skipped update at attempt 3" in proof.text
    assert "patched release, adamw_torch_fused: nothing moved on a skipped update" in proof.text


def test_a_run_that_fails_is_told_with_the_end_of_its_output(tmp_path: Path) -> None:
    (tmp_path / "transformers.py").write_text("raise ImportError('a broken release')\n")
    job = Job("broken release", (str(module.SCRIPT),), Plan(at=(3,)), path=(str(tmp_path),))
    with pytest.raises(CannotRun, match=r"(?s)broken release.*exit code 1.*a broken release"):
        module.observed(job)
