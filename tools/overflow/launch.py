"""Starts the script in the user's interpreter with the observer inside, and stays out of its way."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from ..errors import CannotRun
from .timeline import Reader, Timeline

_INSIDE = Path(__file__).parent / "inside"
_LAUNCHERS = {"accelerate": ["-m", "accelerate.commands.accelerate_cli"], "torchrun": ["-m", "torch.distributed.run"]}
_FORWARDED = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGCONT")
_STARTUP = """\
import importlib.util, sys
spec = importlib.util.spec_from_file_location({name!r}, {init!r}, submodule_search_locations=[{inside!r}])
inside = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = inside
spec.loader.exec_module(inside)
inside.install({config!r})
inside.hand_over({folder!r})
"""


@dataclass(frozen=True)
class Plan:
    """Which attempts overflow. Nothing chosen means the finite control, in which nothing is changed."""

    at: tuple[int, ...] = ()
    rate: float = 0.0
    seed: int = 0
    rank: int | None = None
    optimizer: str | None = None

    @property
    def is_active(self) -> bool:
        return bool(self.at) or self.rate > 0

    def finite(self) -> Plan:
        return Plan(rank=self.rank, optimizer=self.optimizer)

    def __str__(self) -> str:
        if not self.is_active:
            return "finite"
        where = f"overflow at attempt {','.join(map(str, self.at))}" if self.at else ""
        rate = f"overflow at rate {self.rate:g}, seed {self.seed}" if self.rate else ""
        rank = f" on rank {self.rank}" if self.rank is not None else ""
        return " and ".join(filter(None, [where, rate])) + rank


@dataclass(frozen=True)
class Job:
    """One run: what to start, and how the observer is set up."""

    name: str
    command: tuple[str, ...]  # the script and its arguments, as the user gave them
    plan: Plan
    counters: tuple[str, ...] = ("global_step",)
    watch: tuple[str, ...] = ()
    averages: tuple[str, ...] = ()  # calls in the script that move an average, as they stand there
    python: str = sys.executable
    path: tuple[str, ...] = ()  # folders that come first on the script's sys.path
    environment: Mapping[str, str] = field(default_factory=dict)
    replaced: bytes | None = None  # run this text in place of the script's, under the script's name
    shown: tuple[str, ...] = ("global_step",)  # counters that get a column of the table, if they are found
    output: int | None = None  # file descriptor for the script's output; None passes it through


@dataclass
class Finished:
    """How the process ended, and what was seen of it (rank -> timeline)."""

    job: Job
    returncode: int | None = None
    timelines: dict[int, Timeline] = field(default_factory=dict)
    interrupted_by: int | None = None

    @property
    def complete(self) -> bool:
        return self.returncode is not None and self.returncode >= 0

    @property
    def exit_code(self) -> int | None:
        """As a shell shows it: 128 + the signal's number for a killed process."""
        if self.returncode is None:
            return None
        return self.returncode if self.returncode >= 0 else 128 - self.returncode

    @property
    def timeline(self) -> Timeline:
        """What the wanted rank saw; rank 0's, or the lowest one's, if none is named."""
        wanted = self.job.plan.rank
        if wanted in self.timelines:
            return self.timelines[wanted]
        return self.timelines[min(self.timelines)] if self.timelines else Timeline()


def script_of(command: Sequence[str]) -> Path | None:
    """The Python file that a command runs: the command itself, or the first file that a launcher is given."""
    for word in command if command and command[0] in _LAUNCHERS else command[:1]:
        if word.endswith(".py"):
            return Path(word)
    return None


def check_command(command: Sequence[str]) -> None:
    """Raises: CannotRun if the command is none that can be started."""
    if not command:
        raise CannotRun("a script must follow `--`: python -m tools overflow --at 4 -- train.py --its arguments")
    script = script_of(command)
    if script is None and command[0] != "-m" and command[0] not in _LAUNCHERS:
        raise CannotRun(
            "what follows `--` must be a Python file, `-m MODULE`, `accelerate launch ...` or `torchrun ...`, "
            f"got {command[0]!r}"
        )
    if script is not None and not script.is_file():
        raise CannotRun(f"the script must be a file, got {str(script)!r}; arguments of the script come after it")


def run(job: Job, on_progress: Callable[[Finished], None] = lambda finished: None) -> Finished:
    """Run to the end. `on_progress` is called whenever there is something new, at least twice a second.

    Raises: CannotRun if the interpreter cannot be started; what `on_progress` raises, once the script is stopped.
    """
    finished = Finished(job)
    with tempfile.TemporaryDirectory(prefix="overflow-") as folder:
        command, environment = _prepare(job, Path(folder))
        reader = Reader(Path(folder) / "events")
        with _forwarding(finished) as attend:
            try:
                process = subprocess.Popen(
                    command,
                    env=environment,
                    stdout=job.output,
                    stderr=job.output,
                    start_new_session=os.name == "posix",
                )
            except OSError as error:
                raise CannotRun(
                    f"the interpreter must be one that starts, got {job.python!r}: {error.strerror}"
                ) from error
            attend(process)
            try:
                while finished.returncode is None:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        finished.returncode = process.wait(0.5)
                    finished.timelines = reader.read()
                    on_progress(finished)
            finally:
                _end(process)
    return finished


def _end(process: subprocess.Popen[bytes], patience: float = 10.0) -> None:
    """No script goes on behind an error of ours. It may clean up first; one that has ended is left alone."""
    for number in (signal.SIGTERM, getattr(signal, "SIGKILL", signal.SIGTERM)):
        if process.poll() is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience)


def _prepare(job: Job, folder: Path) -> tuple[list[str], dict[str, str]]:
    """The command line and environment, and the files that they need in `folder`."""
    events, startup = folder / "events", folder / "startup"
    events.mkdir()
    startup.mkdir()
    config = configuration(job, events)
    names = {"name": "_overflow_inside", "init": str(_INSIDE / "__init__.py"), "inside": str(_INSIDE)}
    (startup / "sitecustomize.py").write_text(_STARTUP.format(**names, config=config, folder=str(startup)))
    environment = {**os.environ, **job.environment}
    path = [str(startup), *job.path, *filter(None, [environment.get("PYTHONPATH")])]
    environment["PYTHONPATH"] = os.pathsep.join(path)
    command = list(job.command)
    if job.replaced is not None:
        command = _with_stub(command, job.replaced, folder)
    launcher = _LAUNCHERS.get(command[0])
    return [job.python, *(launcher + command[1:] if launcher else command)], environment


def configuration(job: Job, events: Path) -> dict[str, Any]:
    """What the observer inside the script's process is told."""
    return {
        "folder": str(events),
        "at": list(job.plan.at),
        "rate": job.plan.rate,
        "seed": job.plan.seed,
        "rank": job.plan.rank,
        "optimizer": job.plan.optimizer,
        "counters": list(job.counters),
        "watch": list(job.watch),
        "averages": list(job.averages),
    }


def _with_stub(command: list[str], text: bytes, folder: Path) -> list[str]:
    """Put a file in the script's place that runs `text` as if it stood in the script: same `__file__` and sys.path."""
    script = script_of(command)
    assert script is not None
    stub, changed = folder / "stub" / script.name, folder / "rewritten" / script.name
    stub.parent.mkdir()
    changed.parent.mkdir()
    changed.write_bytes(text)
    code = _STUB.format(script=str(script.resolve()), changed=str(changed), shown=str(script))
    stub.write_text(code, encoding="utf-8")
    index = command.index(str(script)) if str(script) in command else 0
    return [*command[:index], str(stub), *command[index + 1 :]]


_STUB = """\
import os, sys
__file__ = {script!r}
sys.path[0] = os.path.dirname(__file__)
sys.argv[0] = {shown!r}
with open({changed!r}, "rb") as file:
    code = compile(file.read(), {changed!r}, "exec", dont_inherit=True)
del file
exec(code)
"""


@contextlib.contextmanager
def _forwarding(finished: Finished) -> Iterator[Callable[[subprocess.Popen[bytes]], None]]:
    """Hand signals on to the script, which decides what to do with them; a launcher tells its workers.

    Gives what to call with the process once it is there. Signals of the time before wait for that: they must not end
    this process and leave the script behind. What is ignored here is handled from then on, so that the script ignores
    it too unless it chooses otherwise.
    """
    there: list[subprocess.Popen[bytes]] = []
    early: list[int] = []
    before: dict[int, Any] = {}

    def forward(number: int, frame: FrameType | None) -> None:
        if number != getattr(signal, "SIGCONT", None):
            finished.interrupted_by = number
        if not there:
            early.append(number)
            return
        with contextlib.suppress(ProcessLookupError):
            there[0].send_signal(number)

    def handle(numbers: Sequence[int]) -> None:
        with contextlib.suppress(ValueError):  # not the main thread: signals do not come here
            before.update({number: signal.signal(number, forward) for number in numbers})

    def attend(process: subprocess.Popen[bytes]) -> None:
        there.append(process)
        handle(ignored)
        for number in early:
            forward(number, None)

    numbers = [getattr(signal, name) for name in _FORWARDED if hasattr(signal, name)]
    ignored = [number for number in numbers if signal.getsignal(number) == signal.SIG_IGN]
    handle([number for number in numbers if number not in ignored])
    try:
        yield attend
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def describe(finished: Finished) -> str:
    """How the process ended, in words."""
    if finished.returncode is None:
        return "still running"
    if finished.returncode < 0:
        with contextlib.suppress(ValueError):
            return f"killed by {signal.Signals(-finished.returncode).name}"
        return f"killed by signal {-finished.returncode}"
    return f"exit code {finished.returncode}"
