"""Copies of the installed releases, patched or not, and runs of the suite on them."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import pytest

from tools.patch import Series
from tools.trainer.released_copy import changed_files, patched_copy
from tools.upstreams import accelerate, transformers

SUITE = Path(__file__).with_name("suite")
RECIPES = {"transformers": transformers, "accelerate": accelerate}


class InstalledTree:
    """The files of an installed package as a tree (see `tools.patch.Tree`)."""

    date = "Thu, 01 Jan 1970 00:00:00 +0000"
    is_exact = True

    def __init__(self, name: str) -> None:
        spec = importlib.util.find_spec(name)
        assert spec is not None and spec.origin is not None
        self.package = Path(spec.origin).parent
        self.base = version(name)

    def read(self, path: str) -> bytes:
        return (self.package.parent / path.removeprefix("src/")).read_bytes()

    def paths(self, *globs: str) -> list[str]:
        raise NotImplementedError("the recipes know their paths")


@dataclass(frozen=True)
class Session:
    """What became of each case of the suite."""

    outcomes: Mapping[str, str]
    output: str

    def having(self, outcome: str) -> list[str]:
        return sorted(name for name, found in self.outcomes.items() if found == outcome)


@pytest.fixture(scope="session")
def series() -> dict[str, Series]:
    """The default series of both upstreams, made from the installed releases."""
    made = {name: recipe.SERIES[name](InstalledTree(name)) for name, recipe in RECIPES.items()}
    assert not any(one.refused for one in made.values())
    return made


@pytest.fixture(scope="session")
def copy_of(tmp_path_factory) -> Callable[..., Path]:
    """Makes a folder for PYTHONPATH with copies of the packages whose changed files are given by package."""

    def make(**changes: Mapping[str, bytes]) -> Path:
        folder = tmp_path_factory.mktemp("copy")
        for name, files in changes.items():
            patched_copy(InstalledTree(name).package, files, folder)
        return folder

    return make


@pytest.fixture(scope="session")
def patched(series, copy_of) -> Path:
    """Both packages with their whole series."""
    return copy_of(**{name: changed_files(one) for name, one in series.items()})


@pytest.fixture(scope="session")
def run_suite(tmp_path_factory) -> Callable[..., Session]:
    """Runs the suite, or what the pytest arguments leave of it, with the packages in a folder (None: installed)."""

    def run(folder: Path | None, *arguments: str, records: Path | None = None) -> Session:
        report = tmp_path_factory.mktemp("report") / "report.xml"
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "COLUMNS": "120"}
        environment |= {"PYTHONPATH": str(folder)} if folder else {}
        environment |= {"TRAINER_RECORDS": str(records)} if records else {}
        for name in ("PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER"):
            environment.pop(name, None)
        options = ["-c", str(SUITE / "pytest.ini"), f"--junit-xml={report}", f"--basetemp={report.parent / 'runs'}"]
        command = [sys.executable, "-m", "pytest", *options, *arguments]
        result = subprocess.run(command, cwd=SUITE, env=environment, capture_output=True, text=True, check=False)
        assert result.returncode in (0, 1), result.stdout + result.stderr
        for package in folder.iterdir() if folder else ():
            assert f"from {package}" in result.stdout, "the suite must have imported the copy"
        return Session(dict(_outcomes(report)), result.stdout)

    return run


def _outcomes(report: Path):
    for case in ElementTree.parse(report).iter("testcase"):
        found = {child.tag for child in case} & {"failure", "error", "skipped"}
        yield f"{case.get('classname')}::{case.get('name')}", found.pop() if found else "passed"
