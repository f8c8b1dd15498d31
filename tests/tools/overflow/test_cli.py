"""The verb on the command line: the table, exit codes, files, and what it says of wrong options."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from tools.cli import main
from tools.overflow import trainer_table

LOOP = Path(__file__).parent / "scripts" / "text_to_image.py"
processes = pytest.mark.processes
group = pytest.mark.xdist_group("overflow-commands")
TABLE = """\
| run                              | attempts | applied updates | EMA calls | final `global_step` | exit code |
|----------------------------------|---------:|----------------:|----------:|--------------------:|----------:|
| finite                           |        6 |               6 |         6 |                   6 |         0 |
| overflow at attempt 4            |        6 |               5 |         6 |                   6 |         0 |
| overflow at attempt 4, rewritten |        7 |               6 |         6 |                   6 |         0 |
"""


@processes
@group
def test_the_table_of_finite_overflow_and_rewritten_runs(overflow, tmp_path: Path, json_schema) -> None:
    files = ("--json", "run.json", "--plot", "run.png")
    result = overflow("--at", "4", "--compare-rewrite", *files, "--", LOOP, "--output_dir", "out/{run}")
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("trained 6 steps\n" * 3)
    assert TABLE in result.stdout
    told = result.stdout.split(TABLE)[1]
    before, after = told.split("overflow at attempt 4, rewritten\n")
    for what in ("EMA", "global_step", "progress bar"):
        assert f"  {what} moved on a skipped update at attempt 4\n" in before
    assert "  nothing moved on a skipped update\n" in after
    assert "GradScaler was installed" in after
    content = json.loads((tmp_path / "run.json").read_text())
    json_schema(content)
    assert (content["complete"], content["exit_code"], len(content["runs"])) == (True, 0, 3)
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["finite", "overflow", "patched"]
    assert "[overflow at attempt 4] attempt 4 skipped" in result.stderr


@processes
@group
def test_a_gate_without_a_reset_is_told_by_its_loss_window(overflow, tmp_path: Path) -> None:
    head, tail = LOOP.read_text().rsplit("if accelerator.sync_gradients:", 1)
    test = "if accelerator.sync_gradients and not accelerator.optimizer_step_was_skipped:"
    (tmp_path / "gated.py").write_text(head + test + tail)
    result = overflow("--at", "4", "--", "gated.py")
    assert result.returncode == 1, result.stderr
    assert "  loss window of step 4 holds two windows: train_loss 2." in result.stdout
    assert "moved on a skipped update" not in result.stdout


@processes
@group
def test_a_run_that_is_killed_leaves_what_was_seen(overflow, tmp_path: Path, json_schema) -> None:
    result = overflow("--at", "2", "--json", "run.json", "--", LOOP, "--die_at", "3")
    assert result.returncode == 128 + signal.SIGKILL
    assert "killed by SIGKILL" in result.stdout
    content = json.loads((tmp_path / "run.json").read_text())
    json_schema(content)
    assert (content["complete"], content["runs"][0]["complete"]) == (False, False)
    outcomes = [attempt["outcome"] for attempt in content["runs"][0]["attempts"]]
    assert outcomes == ["applied", "skipped", "applied"]


WRONG = {
    "no script": (["--at", "4"], "a script must follow"),
    "a script that is not there": (["--", "missing.py"], "the script must be a file"),
    "a shell script": (["--", "train.sh"], "must be a Python file"),
    "attempt 0": (["--at", "0", "--", "train.py"], "whole numbers from 1"),
    "an attempt that is no number": (["--at", "2,x", "--", "train.py"], "got x"),
    "a rate above 1": (["--rate", "1.5", "--", "train.py"], "1.5"),
    "a negative rank": (["--rank", "-1", "--", "train.py"], "-1"),
    "a watch without a class": (["--watch", "module", "--", "train.py"], "module:Class.method"),
    "a comparison without an overflow": (["--compare-rewrite", "--", "train.py"], "must have an overflow"),
    "two comparisons": (["--at", "1", "--compare-rewrite", "--compare", "x.py", "--", "train.py"], "one of"),
    "a patched script that is not there": (["--at", "1", "--compare", "x.py", "--", "train.py"], "which is no file"),
    "a patched folder that is not there": (["--at", "1", "--compare-path", "x", "--", "train.py"], "must be a folder"),
    "a figure of another kind": (["--plot", "run.txt", "--", "train.py"], ".png, .svg or .pdf"),
    "a figure in no folder": (["--plot", "none/run.png", "--", "train.py"], "in a folder that is there"),
    "a JSON in no folder": (["--json", "none/run.json", "--", "train.py"], "in a folder that is there"),
    "a JSON that is a folder": (["--json", ".", "--", "train.py"], "got .: it is a folder"),
    "a JSON of too long a name": (["--json", "x" * 300, "--", "train.py"], "must name a file that can be written"),
    "a comparison of a module": (["--at", "1", "--compare", "train.py", "--", "-m", "package"], "must have a script"),
    "a rewrite of a module": (["--at", "1", "--compare-rewrite", "--", "-m", "package"], "must have a script"),
    "a script that does not parse": (["--at", "1", "--compare-rewrite", "--", "broken.py"], "broken.py:1"),
}


@pytest.mark.parametrize(("words", "said"), WRONG.values(), ids=WRONG)
def test_wrong_options_are_told_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("raise SystemExit('this must not run')\n")
    (tmp_path / "broken.py").write_text("if accelerator.sync_gradients\n    optimizer.step()\n")
    (tmp_path / "train.sh").write_text("exit 1\n")
    result = CliRunner().invoke(main, ["overflow", *words])
    assert result.exit_code == 2, result.output
    assert said in result.output
    assert "this must not run" not in result.output


def test_a_figure_without_matplotlib_is_told_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    (tmp_path / "train.py").write_text("open('ran', 'w')\n")
    result = CliRunner().invoke(main, ["overflow", "--plot", "run.png", "--", "train.py"])
    assert result.exit_code == 2
    assert '--plot needs matplotlib: pip install "accelerate-ext[plot]"' in result.output
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


@processes
@group
def test_a_script_that_the_rules_do_not_change_is_told(overflow, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('no loop')\n")
    result = overflow("--at", "1", "--compare-rewrite", "--watch", "mypackage.ema:EMA.update", "--", "train.py")
    assert result.returncode == 2
    assert result.stdout.startswith("no loop\n\n")
    assert "no rewritten run was made: the rules change nothing in this script and find no loop" in result.stdout


@processes
@group
def test_a_script_that_cannot_start_is_run_once(overflow, tmp_path: Path, json_schema) -> None:
    (tmp_path / "train.py").write_text("import no_such_package\n")
    words = ("--at", "4", "--json", "run.json", "--plot", "run.png", "--compare-path", ".")
    result = overflow(*words, "--", "train.py")
    assert result.returncode == 2
    assert result.stderr.count("ModuleNotFoundError") == 1
    assert result.stdout == "\nfinite\n  the script ended with exit code 1 before its first attempt, see above\n"
    content = json.loads((tmp_path / "run.json").read_text())
    json_schema(content)
    assert (content["complete"], content["exit_code"], len(content["runs"])) == (True, 2, 1)
    assert not (tmp_path / "run.png").exists()


@processes
@group
def test_a_trainer_script_gets_no_rewritten_run_but_advice(overflow) -> None:
    script = Path(trainer_table.__file__).parent / "scripts" / "trainer_six.py"
    result = overflow("--at", "3", "--compare-rewrite", "--", script)
    assert result.returncode == 1, result.stderr
    assert result.stdout.count("global_step 6\n") == 2
    assert "global_step moved on a skipped update at attempt 3" in result.stdout
    assert "it applied 5 updates, the finite run 6: what it skipped was counted as an update\n" in result.stdout
    last = result.stdout.splitlines()[-1]
    assert last.startswith(
        "no rewritten run was made: the rules change nothing in this script, because its loop is the"
    )
    assert last.endswith("name their folders with --compare-path")


@processes
@group
def test_several_folders_of_patched_packages_come_first_together(overflow, tmp_path: Path) -> None:
    for name, text in (("one", "shared, mine = 'one', 1"), ("two", "shared, mine = 'two', 2")):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"toy_{name}.py").write_text("")
        (tmp_path / name / "toy_both.py").write_text(text)
    prints = (
        "import importlib.util\n"
        "found = {name: bool(importlib.util.find_spec(name)) for name in ('toy_one', 'toy_two', 'toy_both')}\n"
        "print(found, found['toy_both'] and __import__('toy_both').shared)\n"
    )
    (tmp_path / "train.py").write_text(prints + LOOP.read_text())
    paths = ("--compare-path", "one", "--compare-path", "two")
    result = overflow("--at", "4", *paths, "--", "train.py")
    lines = [line for line in result.stdout.splitlines() if line.startswith("{")]
    assert lines[0] == lines[1] == "{'toy_one': False, 'toy_two': False, 'toy_both': False} False"
    assert lines[2] == "{'toy_one': True, 'toy_two': True, 'toy_both': True} one"


def test_help_teaches_with_examples() -> None:
    result = CliRunner().invoke(main, ["overflow", "--help"])
    assert result.exit_code == 0
    assert "overflow --at 4 --compare-rewrite -- train.py" in result.output
    assert "Exit codes: 0 nothing moved on a skipped update" in result.output
