"""Scripts that run under the observer: each in a process of its own, or many in forks of one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tools.overflow import launch
from tools.overflow.launch import Job, Plan
from tools.overflow.model import read
from tools.overflow.timeline import Reader, Timeline

ROOT = Path(__file__).resolve().parents[3]
SCRIPTS = Path(__file__).parent / "scripts"


@dataclass(frozen=True)
class Ran:
    """How a script ended and what was seen of it."""

    exit_code: int
    timeline: Timeline
    output: str

    @property
    def applied(self) -> int:
        return sum(attempt.applied for attempt in self.timeline.attempts)


class Workshop:
    """One process that has imported torch and accelerate, and forks for each script."""

    def __init__(self) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        command = [sys.executable, str(SCRIPTS / "workshop.py")]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def run(
        self,
        script: Path,
        folder: Path,
        plan: Plan | None = None,
        *arguments: str,
        path: tuple[Path, ...] = (),
        **more,
    ) -> Ran:
        """Run a script under the observer; `more` goes into the job (counters, watch)."""
        work = folder / f"run-{len(list(folder.iterdir()))}"
        events = work / "events"
        events.mkdir(parents=True)
        model = read(script)
        found = {"averages": model.averages, "counters": model.names()}
        job = Job("", (str(script),), plan or Plan(), **{**found, **more})
        order = {
            "config": launch.configuration(job, events),
            "inside": str(Path(launch.__file__).parent / "inside"),
            "script": str(script),
            "arguments": list(arguments),
            "folder": str(work),
            "path": [str(folder) for folder in path],
        }
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        exit_code = int(self.process.stdout.readline())
        timelines = Reader(events).read()
        return Ran(exit_code, timelines.get(0, Timeline()), (work / "output.txt").read_text(errors="replace"))

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(30)


@pytest.fixture(scope="session")
def workshop() -> Iterator[Workshop]:
    shop = Workshop()
    yield shop
    shop.close()


@pytest.fixture
def scripts() -> Path:
    return SCRIPTS


@pytest.fixture
def overflow(tmp_path: Path):
    """The command line itself: `overflow("--at", "4", "--", script)`, run in an empty folder."""

    def call(*words: object, env: dict[str, str] | None = None, **more) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **(env or {})}
        environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [environment.get("PYTHONPATH")])])
        command = [sys.executable, "-m", "tools", "overflow", *map(str, words)]
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, **more
        )

    return call
