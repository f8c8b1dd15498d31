"""Accelerate's own tests, from its source release, come out the same on the patched copy as on the installed one."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import xml.etree.ElementTree as ElementTree
from importlib.metadata import version
from pathlib import Path

import pytest

from tools.trainer.released_copy import changed_files

pytestmark = [pytest.mark.network, pytest.mark.processes, pytest.mark.xdist_group("accelerate-own")]

# ACCELERATE_TESTS=all adds what else runs on a CPU in minutes rather than seconds.
QUICK = ("test_optimizer", "test_scheduler", "test_accelerator")
OTHERS = ("test_cpu", "test_grad_sync", "test_kwargs_handlers", "test_memory_utils", "test_state_checkpointing")
FILES = QUICK + (OTHERS if os.environ.get("ACCELERATE_TESTS") == "all" else ())
# Compares the memory of the whole process before and after; it fails and passes by turns, patched or not.
UNSTEADY = "not test_free_memory_dereferences_prepared_components"


def pip(*arguments: str) -> None:
    done = subprocess.run([sys.executable, "-m", "pip", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    """The unpacked source release, without the package itself, and what its tests import beyond ours."""
    folder = tmp_path_factory.mktemp("accelerate")
    release = f"accelerate=={version('accelerate')}"
    pip("download", "-q", "--no-deps", "--no-binary=accelerate", f"--dest={folder}", release)
    pip("install", "-q", "--no-deps", f"--target={folder / 'needed'}", "parameterized")
    (archive,) = folder.glob("accelerate-*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    return folder


def outcomes(source: Path, name: str, copy: Path | None, report: Path) -> dict[str, str]:
    """What became of each test of one file."""
    (root,) = source.glob("accelerate-*/tests")
    path = [str(copy)] if copy else []
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*path, str(source / "needed")]), "HF_HUB_OFFLINE": "1"}
    environment |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    for variable in ("PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER"):
        environment.pop(variable, None)
    options = ["-q", "-p", "no:cacheprovider", "-k", UNSTEADY, f"--junit-xml={report}"]
    command = [sys.executable, "-m", "pytest", *options, f"{name}.py"]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    cases = ElementTree.parse(report).iter("testcase")
    return {f"{case.get('classname')}::{case.get('name')}": next((child.tag for child in case), "") for case in cases}


@pytest.mark.parametrize("name", FILES)
def test_its_own_tests_come_out_the_same(name, source, copy_of, series, tmp_path):
    before = outcomes(source, name, None, tmp_path / "before.xml")
    after = outcomes(source, name, copy_of(accelerate=changed_files(series["accelerate"])), tmp_path / "after.xml")
    assert after == before
    assert sum(outcome in ("", "system-out") for outcome in before.values()) > 0
