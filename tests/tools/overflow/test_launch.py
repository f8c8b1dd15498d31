"""Starting a script and staying out of its way: output, exit codes, signals. The scripts here need no torch."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tools.errors import CannotRun
from tools.overflow.launch import Finished, Job, Plan, _end, check_command, describe, run, script_of

pytestmark = [pytest.mark.processes, pytest.mark.xdist_group("overflow-launch")]
ROOT = Path(__file__).resolve().parents[3]
# Not one long wait: a signal that comes just before it would be handled when it is over.
WAIT = "while True: time.sleep(0.1)"


def write(folder: Path, text: str, name: str = "script.py") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def started(folder: Path, text: str, *options: str) -> subprocess.Popen[str]:
    """The command line on a script that says `ready` when it is."""
    path = write(folder, text)
    command = [sys.executable, "-u", "-m", "tools", "overflow", *options, "--", str(path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # tests in the background ignore it
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def test_output_and_exit_code_pass_through(tmp_path: Path, overflow) -> None:
    path = write(tmp_path, "import sys\nprint('out')\nprint('err', file=sys.stderr)\nsys.exit(7)\n")
    result = overflow("--", path)
    assert result.returncode == 7
    assert result.stdout.startswith("out\n")
    assert "\nerr\n" in result.stderr
    assert "[finite] exit code 7" in result.stderr


def test_the_script_sees_the_world_as_it_does_alone(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("VALUE = 5\n")
    text = """
import json, os, sys
from beside import VALUE
if __name__ == "__main__":
    import __main__
    facts = [sys.argv, __file__, sys.path[0], VALUE, __main__.__file__, os.getcwd(), __spec__ is None]
    open(sys.argv[1], "w").write(json.dumps(facts))
"""
    path = write(tmp_path, text)
    observed, alone, replaced = (tmp_path / name for name in ("observed", "alone", "replaced"))
    subprocess.run([sys.executable, str(path), str(alone), "--at", "5"], check=True)
    assert run(Job("", (str(path), str(observed), "--at", "5"), Plan(at=(2,)))).returncode == 0
    job = Job("", (str(path), str(replaced), "--at", "5"), Plan(at=(2,)), replaced=text.encode() + b"# changed\n")
    assert run(job).returncode == 0
    facts = {file.name: json.loads(file.read_text()) for file in (observed, alone, replaced)}
    for name in ("observed", "replaced"):
        assert [str(word).replace(name, "alone") for word in facts[name][0]] == facts["alone"][0]
        assert facts[name][1:] == facts["alone"][1:]


def test_a_replaced_text_runs_in_the_scripts_place_and_shows_its_own_lines_in_a_traceback(tmp_path: Path) -> None:
    path = write(tmp_path, "print('original')\n")
    text = b"def fail():\n    raise ValueError('here')\nfail()\n"
    with (tmp_path / "output").open("wb") as output:
        finished = run(Job("", (str(path),), Plan(), replaced=text, output=output.fileno()))
    said = (tmp_path / "output").read_text()
    assert finished.returncode == 1
    assert 'script.py", line 2, in fail' in said
    assert "raise ValueError('here')" in said


def test_the_interpreters_own_sitecustomize_still_runs(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "sitecustomize.py").write_text("import builtins\nbuiltins.customized = True\n")
    path = write(tmp_path, "import sitecustomize\nsys = __import__('sys')\nsys.exit(0 if customized else 1)\n")
    environment = {"PYTHONPATH": str(tmp_path / "theirs")}
    assert run(Job("", (str(path),), Plan(), environment=environment)).returncode == 0


def test_a_module_runs_with_m(tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text("import sys\nsys.exit(int(sys.argv[1]))\n")
    job = Job("", ("-m", "package", "5"), Plan(), environment={"PYTHONPATH": str(tmp_path)})
    assert run(job).returncode == 5


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_a_signal_reaches_the_script_which_decides(tmp_path: Path, number: signal.Signals) -> None:
    text = f"""
import signal, sys, time
signal.signal({int(number)}, lambda *_: (print("caught", flush=True), sys.exit(9)))
print("ready", flush=True)
{WAIT}
"""
    process = started(tmp_path, text)
    process.send_signal(number)
    out, _ = process.communicate(timeout=600)
    assert out.startswith("caught\n")
    assert process.returncode == 9


def test_a_script_that_a_signal_ends_gives_its_number(tmp_path: Path) -> None:
    process = started(tmp_path, f"import time\nprint('ready', flush=True)\n{WAIT}\n", "--json", "run.json")
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=600)
    assert process.returncode == 128 + signal.SIGTERM
    assert "killed by SIGTERM" in out + err
    assert json.loads((tmp_path / "run.json").read_text())["complete"] is False


def test_a_script_that_a_signal_without_a_name_ends_gives_its_number(tmp_path: Path) -> None:
    number = signal.SIGRTMIN + 2
    finished = run(Job("", (str(write(tmp_path, f"import os\nos.kill(os.getpid(), {number})\n")),), Plan()))
    assert describe(finished) == f"killed by signal {number}"
    assert finished.exit_code == 128 + number
    assert describe(Finished(finished.job)) == "still running"


def test_going_on_after_a_stop_is_no_interruption(tmp_path: Path) -> None:
    text = f"""
import signal, sys, time
signal.signal(signal.SIGCONT, lambda *_: (print("goes on", flush=True), sys.exit(0)))
print("ready", flush=True)
{WAIT}
"""
    process = started(tmp_path, text, "--json", "run.json")
    process.send_signal(signal.SIGCONT)
    out, err = process.communicate(timeout=600)
    assert out.startswith("goes on\n")
    assert "[finite] exit code 0" in err
    assert json.loads((tmp_path / "run.json").read_text())["complete"] is True


def test_ctrl_c_in_a_terminal_reaches_the_script_once(tmp_path: Path) -> None:
    text = f"""
import time
try:
    print("ready", flush=True)
    {WAIT}
except KeyboardInterrupt:
    print("interrupted", flush=True)
    time.sleep(0.5)
    print("cleaned up", flush=True)
"""
    process = started(tmp_path, text)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=600)
    assert out.startswith("interrupted\ncleaned up\n")


def test_a_killed_command_leaves_a_json_that_is_whole_and_marked(tmp_path: Path, json_schema) -> None:
    text = "import os, time\nprint('ready', flush=True)\nwhile not os.path.exists('end'):\n    time.sleep(0.1)\n"
    process = started(tmp_path, text, "--json", "run.json")
    while not (tmp_path / "run.json").exists():
        assert process.poll() is None
        time.sleep(0.1)
    process.kill()
    process.wait()
    (tmp_path / "end").touch()  # the script is left behind, and must not stay
    process.communicate(timeout=600)
    content = json.loads((tmp_path / "run.json").read_text())
    json_schema(content)
    assert (content["complete"], content["exit_code"]) == (False, None)
    assert content["runs"][0]["complete"] is False


def test_a_signal_in_the_moment_of_the_start_reaches_the_script_too(tmp_path: Path, monkeypatch) -> None:
    seen: list[int] = []
    popen = subprocess.Popen

    def interrupted(*words: object, **more: object) -> subprocess.Popen[bytes]:
        process = popen(*words, **more)
        os.kill(os.getpid(), signal.SIGTERM)
        return process

    monkeypatch.setattr(subprocess, "Popen", interrupted)
    before = signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
    try:
        finished = run(Job("", (str(write(tmp_path, "import time\ntime.sleep(5)\n")),), Plan()))
    finally:
        signal.signal(signal.SIGTERM, before)
    assert (finished.returncode, finished.interrupted_by) == (-signal.SIGTERM, signal.SIGTERM)
    assert seen == []


@pytest.mark.parametrize("is_deaf", [False, True])
def test_an_error_on_the_way_stops_the_script_which_may_clean_up(tmp_path: Path, monkeypatch, is_deaf: bool) -> None:
    handler = "signal.SIG_IGN" if is_deaf else "lambda *told: (open('cleaned', 'w').close(), sys.exit())"
    text = f"import signal, sys, time\nsignal.signal(signal.SIGTERM, {handler})\nopen('ready', 'w').close()\n{WAIT}\n"
    path = write(tmp_path, text)
    monkeypatch.chdir(tmp_path)
    if is_deaf:
        monkeypatch.setattr(_end, "__defaults__", (0.5,))
    processes: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen
    monkeypatch.setattr(
        subprocess, "Popen", lambda *words, **more: processes.append(popen(*words, **more)) or processes[0]
    )

    def fail(finished: Finished) -> None:
        if Path("ready").exists():
            raise CannotRun("the disk is full")

    with pytest.raises(CannotRun, match="the disk is full"):
        run(Job("", (str(path),), Plan()), fail)
    assert processes[0].returncode == (-signal.SIGKILL if is_deaf else 0)
    assert Path("cleaned").exists() is not is_deaf


def test_an_interpreter_that_is_not_there_is_told(tmp_path: Path) -> None:
    job = Job("", (str(write(tmp_path, "")),), Plan(), python=str(tmp_path / "python"))
    with pytest.raises(CannotRun, match="the interpreter must be one that starts"):
        run(job)


def test_the_script_of_a_launcher_is_the_first_file_it_is_given() -> None:
    assert script_of(("torchrun", "--nproc_per_node", "2", "train.py", "--config", "other.py")) == Path("train.py")
    assert script_of(("train.py", "other.py")) == Path("train.py")
    assert script_of(("-m", "package", "other.py")) is None


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ((), "a script must follow `--`"),
        (("missing.py",), "the script must be a file, got 'missing.py'"),
        (("torchrun", "missing.py"), "the script must be a file, got 'missing.py'"),
        (("sh", "train.sh"), "must be a Python file, .* got 'sh'"),
        (("--lr", "5"), "must be a Python file, .* got '--lr'"),
    ],
)
def test_a_command_that_cannot_be_started_is_told_before_anything_runs(command: tuple[str, ...], said: str) -> None:
    with pytest.raises(CannotRun, match=said):
        check_command(command)
