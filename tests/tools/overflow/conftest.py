"""Scripts that run under the observer: each in a process of its own, or many in forks of one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import jsonschema
import pytest

from tools.overflow import launch
from tools.overflow.launch import Job, Plan
from tools.overflow.model import read
from tools.overflow.timeline import Reader, Timeline, add

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


class Story:
    """A timeline written by hand: attempts, and what happened behind each of them."""

    def __init__(self, optimizers: tuple[str, ...] = ("optimizer",), chosen: str | None = None) -> None:
        self.timeline = Timeline()
        self.made = dict.fromkeys(range(1, len(optimizers) + 1), 0)
        for number, name in enumerate(optimizers, 1):
            fields = {"kind": "AdamW", "prepared": True, "fused": False, "scaler": "script"}
            self.add("optimizer", number=number, name=name, chosen=chosen in (None, name), **fields)

    def add(self, event: str, **fields: object) -> Story:
        add(self.timeline, {"event": event, "time": 0.0, "after": len(self.timeline.attempts), **fields})
        return self

    def attempt(self, outcome: str = "applied", optimizer: int = 1, losses: tuple = (1.0,), **more: object) -> Story:
        self.made[optimizer] += 1
        fields = {"number": self.made[optimizer], "injected": outcome == "skipped", "losses": list(losses), **more}
        event = {"event": "attempt", "optimizer": optimizer, "outcome": outcome, "time": 0.0, **fields}
        add(self.timeline, {**event, "after": len(self.timeline.attempts) + 1})
        return self

    def skip(self, **more: object) -> Story:
        return self.attempt("skipped", **more)

    def average(self, moved: bool | None = None, number: int = 1, optimizers: tuple = ()) -> Story:
        return self.add("average", number=number, kind="EMA", moved=moved, optimizers=list(optimizers))

    def scheduler(self, moved: int = 1) -> Story:
        return self.add("scheduler", number=1, kind="LambdaLR", moved=moved, prepared=True, optimizers=[1])

    def counter(self, value: int, name: str = "global_step") -> Story:
        return self.add("counter", name=name, value=value, where="main")

    def bar(self, moved: float = 1, number: int = 1) -> Story:
        return self.add("bar", number=number, moved=moved, position=0, total=None, title="Steps")

    def log(self, step: int | None, how: str = "accelerator.log", **values: float) -> Story:
        return self.add("log", how=how, step=step, values=values)

    def save(self, name: str) -> Story:
        return self.add("save", name=name, how="accelerator.save_state")

    def evaluate(self, step: int) -> Story:
        return self.add("evaluate", step=step)


@pytest.fixture
def story() -> type[Story]:
    return Story


@pytest.fixture(scope="session")
def json_schema() -> Callable[[object], None]:
    """Raises if a value does not follow the schema of `--json`."""
    schema = json.loads((ROOT / "tools" / "schemas" / "overflow.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema).validate


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
        alone: bool = False,
        **more: object,
    ) -> Ran:
        """Run a script under the observer, or without it; `more` goes into the job (counters, watch)."""
        work = folder / f"run-{len(list(folder.glob('run-*')))}"
        events = work / "events"
        events.mkdir(parents=True)
        model = read(script)
        found = {"averages": model.averages, "counters": model.names()}
        job = Job("", (str(script),), plan or Plan(), **{**found, **more})
        order = {
            "config": None if alone else launch.configuration(job, events),
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
        self.process.wait(600)


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
        options = {"capture_output": True, "text": True, "check": False, "timeout": 600}
        return subprocess.run(command, cwd=tmp_path, env=environment, **{**options, **more})

    return call
