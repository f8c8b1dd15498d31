"""The command line: what goes where, and the exit code that says how it went."""

from __future__ import annotations

import inspect
import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
from click.testing import CliRunner

import tools
from tools import catalog, report
from tools.cli import main

WRONG = b"""\
from accelerate import Accelerator


def train(model, optimizer, loader, ema):
    accelerator = Accelerator(gradient_accumulation_steps=2)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    global_step = 0
    for batch in loader:
        with accelerator.accumulate(model):
            loss = model(batch)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            ema.step(model.parameters())
            global_step += 1
"""
GATED = b"        if accelerator.sync_gradients and not accelerator.optimizer_step_was_skipped:\n            ema"
NOT_PARSING = b"def f(:\n"


def run(*args: str | Path):
    apart = {"mix_stderr": False} if "mix_stderr" in inspect.signature(CliRunner).parameters else {}  # click below 8.2
    return CliRunner(**apart).invoke(main, [str(arg) for arg in args], prog_name="tools")


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    """A folder with one script that counts skipped updates, and the process inside it."""
    (tmp_path / "train.py").write_bytes(WRONG)
    monkeypatch.chdir(tmp_path)
    return tmp_path


class TestRewrite:
    def test_the_diff_is_printed_and_nothing_is_written(self, here):
        result = run("rewrite", "train.py")
        assert result.exit_code == 1
        assert result.stdout.startswith("diff --git a/train.py b/train.py\nindex ")
        assert "1 file: 1 to rewrite" in result.stderr
        assert (here / "train.py").read_bytes() == WRONG

    def test_the_printed_diff_applies(self, here, make_repo):
        repo = make_repo()
        repo.commit({"train.py": WRONG})
        repo.git("apply", "-", stdin=run("rewrite", "train.py").stdout_bytes)
        assert GATED in repo.read("train.py")

    def test_write_makes_the_change_and_a_second_run_finds_nothing(self, here):
        result = run("rewrite", "--write", "train.py")
        assert (result.exit_code, result.stdout) == (0, "rewrote train.py\n")
        assert "1 file: 1 rewritten" in result.stderr
        assert GATED in (here / "train.py").read_bytes()
        again = run("rewrite", "train.py")
        assert (again.exit_code, again.stdout) == (0, "")

    def test_a_folder_is_searched(self, here):
        (here / "sub").mkdir()
        shutil.copy("train.py", "sub/other.py")
        result = run("rewrite", ".")
        assert "a/train.py" in result.stdout
        assert "a/sub/other.py" in result.stdout

    def test_one_file_that_does_not_parse_keeps_all_from_being_written(self, here):
        (here / "broken.py").write_bytes(NOT_PARSING)
        result = run("rewrite", "--write", ".")
        assert result.exit_code == 2
        assert "broken.py:1:7: unreadable: syntax error" in result.stderr
        assert "nothing was written (1 to rewrite)" in result.stderr
        assert " rewritten" not in result.stderr
        assert (here / "train.py").read_bytes() == WRONG

    def test_a_file_that_does_not_parse_alone_leaves_nothing_to_write(self, here):
        (here / "train.py").write_bytes(NOT_PARSING)
        result = run("rewrite", "--write", ".")
        assert result.exit_code == 2
        assert "nothing was written" not in result.stderr
        assert (here / "train.py").read_bytes() == NOT_PARSING

    def test_a_name_that_no_diff_can_hold_is_a_message(self, here):
        (here / "train.py").rename(here / 'a"b.py')
        result = run("rewrite", ".")
        assert (result.exit_code, result.stdout) == (2, "")
        assert "a path in a diff must be relative and free of quotes and control characters" in result.stderr
        assert run("rewrite", "--write", ".").exit_code == 0
        assert GATED in (here / 'a"b.py').read_bytes()

    def test_what_parses_is_shown_beside_what_does_not(self, here):
        (here / "broken.py").write_bytes(NOT_PARSING)
        (here / "binary.py").write_bytes(b"\0\1\2")
        result = run("rewrite", ".")
        assert result.exit_code == 2
        assert "a/train.py" in result.stdout
        assert "broken.py:1:7: unreadable" in result.stderr
        assert "binary.py: unreadable: a Python source file must not contain NUL bytes" in result.stderr

    def test_a_link_to_nowhere_is_a_file_that_cannot_be_read(self, here):
        (here / "gone.py").symlink_to("nowhere")
        result = run("rewrite", ".")
        assert result.exit_code == 2
        assert "gone.py: unreadable: the file cannot be read: No such file" in result.stderr

    def test_a_counted_optimizer_must_be_a_name(self, here):
        result = run("rewrite", "--counted-optimizer", "a b(", "train.py")
        assert result.exit_code == 2
        assert "--counted-optimizer must be the text of an optimizer such as `self.optimizer`" in result.stderr

    def test_missing_paths_are_all_named(self, here):
        result = run("rewrite", "one.py", "train.py", "two.py")
        assert result.exit_code == 2
        assert "these are not: one.py, two.py" in result.stderr
        assert "Traceback" not in result.stderr


TWO_OPTIMIZERS = b"""\
from accelerate import Accelerator


def train(model, head, opt_model, opt_head, loader):
    accelerator = Accelerator()
    model, head, opt_model, opt_head, loader = accelerator.prepare(model, head, opt_model, opt_head, loader)
    global_step = 0
    for batch in loader:
        with accelerator.accumulate(model, head):
            accelerator.backward(head(model(batch)))
            opt_model.step()
            opt_head.step()
            opt_model.zero_grad()
            opt_head.zero_grad()
        if accelerator.sync_gradients:
            global_step += 1
"""


def test_a_choice_that_belongs_to_the_user_is_named_and_taken(here):
    (here / "train.py").write_bytes(TWO_OPTIMIZERS)
    result = run("rewrite", "train.py")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "train.py:15:9: several-optimizers: refused" in result.stderr
    assert "--counted-optimizer" in result.stderr
    result = run("rewrite", "train.py", "--counted-optimizer", "opt_head")
    assert "+        if accelerator.sync_gradients and not opt_head.step_was_skipped:" in result.stdout


class TestReport:
    def test_each_site_has_a_line(self, here):
        result = run("report", "train.py")
        assert result.exit_code == 1
        lines = result.stdout.splitlines()
        assert any(line.startswith("train.py:12:13: ") and " left " in line for line in lines)
        assert any(line.startswith("train.py:16:9: gated: would rewrite ") for line in lines)
        assert lines[-1].startswith("1 file: 1 to rewrite, ")
        assert "rewritten" not in result.stdout + result.stderr

    def test_it_ends_by_how_to_make_the_changes_where_there_are_some(self, here):
        result = run("report", "train.py")
        assert result.stderr == "to make these changes: tools rewrite --write train.py\n"
        assert run("report", "--only", "left", "train.py").stderr == ""
        assert (
            run("report", "--json", "train.py").stderr == run("report", "--format", "sarif", "train.py").stderr == ""
        )
        words = shlex.split(result.stderr.partition(": tools ")[2])
        assert run(*words).exit_code == 0
        again = run("report", "train.py")
        assert (again.exit_code, again.stderr) == (0, "")

    def test_the_command_keeps_the_choices_and_names_the_files_that_change(self, here):
        (here / "a folder").mkdir()
        (here / "a folder" / "two.py").write_bytes(TWO_OPTIMIZERS)
        (here / "nothing.py").write_text("x = 1\n")
        (here / "train.py").unlink()
        result = run("report", ".", "--counted-optimizer", "opt_head", "--no-follow-arguments")
        assert result.stderr == (
            "to make these changes: tools rewrite --write --counted-optimizer opt_head --no-follow-arguments "
            "'a folder/two.py'\n"
        )
        assert run(*shlex.split(result.stderr.partition(": tools ")[2])).exit_code == 0

    def test_many_files_are_not_all_named(self, here):
        for number in range(9):
            (here / f"train_{number}.py").write_bytes(WRONG)
        paths = sorted(path.name for path in here.glob("*.py"))
        assert run("report", *paths).stderr == "to make these changes: tools rewrite --write PATH...\n"
        assert run("report", ".").stderr == "to make these changes: tools rewrite --write .\n"

    def test_json_is_valid_and_two_ways_to_ask_for_it_give_the_same(self, here):
        result = run("report", "train.py", "--json")
        schema = json.loads((Path(report.__file__).parent / "schemas" / "report.schema.json").read_text())
        document = json.loads(result.stdout)
        jsonschema.validate(document, schema)
        assert document["files"][0]["path"] == "train.py"
        assert run("report", "--format", "json", "train.py").stdout == result.stdout

    def test_sarif_names_the_place(self, here):
        (result,) = json.loads(run("report", "train.py", "--format", "sarif").stdout)["runs"][0]["results"]
        assert result["locations"][0]["physicalLocation"]["region"]["startLine"] == 16

    @pytest.mark.parametrize(
        ("only", "code", "outcomes"),
        [
            ((), 1, {"rewritten", "left"}),
            (("rewritten",), 1, {"rewritten"}),
            (("refused", "rewritten"), 1, {"rewritten"}),
            (("left",), 0, {"left"}),
            (("refused",), 0, set()),
        ],
    )
    def test_only_what_is_asked_for_is_listed_and_counts(self, here, only, code, outcomes):
        options = [word for outcome in only for word in ("--only", outcome)]
        result = run("report", "train.py", "--json", *options)
        document = json.loads(result.stdout)
        (file,) = document["files"]
        assert (result.exit_code, {site["outcome"] for site in file["sites"]}) == (code, outcomes)
        assert document["totals"]["left"] == sum(site["outcome"] == "left" for site in file["sites"])
        text = run("report", "train.py", *options)
        assert text.exit_code == code
        assert len(text.stdout.splitlines()) == len(file["sites"]) + 1

    def test_a_file_that_cannot_be_read_is_never_left_out(self, here):
        (here / "broken.py").write_bytes(NOT_PARSING)
        result = run("report", ".", "--only", "refused")
        assert result.exit_code == 2
        assert "broken.py:1:7: unreadable" in result.stderr

    def test_a_script_that_counts_right_is_fine(self, here):
        run("rewrite", "--write", "train.py")
        assert run("report", "train.py").exit_code == 0

    def test_a_file_that_does_not_parse_is_never_a_quiet_success(self, here):
        (here / "train.py").write_bytes(NOT_PARSING)
        assert run("report", "train.py").exit_code == 2
        assert run("report", "train.py", "--json").exit_code == 2


@pytest.fixture
def upstream(sample, monkeypatch, tmp_path):
    """The sample upstream in the catalogue, with a `patches/` folder of its own."""
    repo, row = sample
    monkeypatch.setattr(catalog, "load", lambda: {"sample": row})
    for module in ("tools.catalog", "tools.generate"):
        monkeypatch.setattr(f"{module}.patches_folder", lambda: tmp_path / "patches")
    monkeypatch.setenv("SAMPLE_CHECKOUT", str(repo.root))
    monkeypatch.chdir(tmp_path)
    return repo, row


class TestSeries:
    def test_generate_writes_the_mails_and_says_where(self, upstream):
        result = run("generate", "sample")
        assert result.exit_code == 0
        folder = Path("out/sample") / upstream[1].base / "first"
        assert result.stdout.splitlines() == ["first: Fix scripts/one.py", "first: Fix scripts/two.py", str(folder)]
        assert (folder / "0001-one.patch").is_file()

    def test_generate_names_what_a_fork_makes_it_refuse(self, upstream):
        repo, _ = upstream
        repo.commit({"scripts/two.py": b"nothing of the kind\n"})
        result = run("generate", "sample", "--base", "HEAD")
        assert result.exit_code == 1
        assert "scripts/two.py:1:1: unclear: refused text: the text is not there" in result.stderr

    def test_record_then_check_then_an_edit_by_hand(self, upstream, tmp_path):
        assert run("generate", "sample", "--all", "--record").exit_code == 0
        result = run("check")
        assert (result.exit_code, result.stdout.count(": current: ")) == (0, 3)
        document = json.loads(run("check", "--json").stdout)
        schema = json.loads((Path(report.__file__).parent / "schemas" / "check.schema.json").read_text())
        jsonschema.validate(document, schema)
        assert [verdict["state"] for verdict in document["verdicts"]] == ["current"] * 3
        path = tmp_path / "patches" / "sample" / upstream[1].base / "top" / "0001-one.patch"
        path.write_bytes(path.read_bytes() + b"\n")
        result = run("check", "sample")
        assert result.exit_code == 1
        assert "sample/top/0001-one.patch: stale: " in result.stdout

    def test_source_and_base_belong_to_one_upstream(self, upstream, monkeypatch):
        _, row = upstream
        monkeypatch.setattr(catalog, "load", lambda: {"sample": row, "other": row})
        result = run("check", "--base", "HEAD")
        assert result.exit_code == 2
        assert "belong to one upstream, got 2" in result.stderr

    def test_check_without_a_source_could_not_run(self, upstream, monkeypatch, tmp_path):
        monkeypatch.delenv("SAMPLE_CHECKOUT")
        monkeypatch.setattr("tools.generate.cache_folder", lambda: tmp_path / "cache")
        (upstream[0].root / ".git").rename(upstream[0].root / "gone")
        result = run("check")
        assert result.exit_code == 2
        assert "sample: not checked: sample needs a checkout" in result.stderr

    @pytest.mark.parametrize(
        ("args", "message"),
        [
            (["generate", "nothing"], "the upstream must be one of sample, got 'nothing'"),
            (["generate", "sample", "--series", "x"], "sample has the series first, top, got 'x'"),
            (["generate", "sample", "--series", "top", "--all"], "--series must be left out, got top"),
            (["generate", "sample", "--record", "--out", "out"], "give one of them, got --out out as well"),
            (["generate", "sample", "--base", "nowhere"], "the revision must name a commit"),
            (["generate", "sample", "--source", "missing"], "must be a folder that holds a git checkout"),
            (["generate", "sample", "--source", "."], "which git does not know"),
            (["check", "sample", "--base", "nowhere"], "the revision must name a commit"),
            (["apply", "sample", "--to", "missing"], "must be a folder"),
        ],
    )
    def test_bad_input_is_a_message_and_exit_code_2(self, upstream, args, message):
        result = run(*args)
        assert result.exit_code == 2
        assert message in result.stderr.replace("\n", " ")
        assert result.stdout == ""
        assert not Path("out").exists()

    def test_out_that_is_a_file_is_a_message(self, upstream, tmp_path):
        (tmp_path / "out").write_text("x")
        result = run("generate", "sample")
        assert result.exit_code == 2
        assert "could not be written" in result.stderr

    @pytest.mark.parametrize("fault", [ValueError("odd"), KeyboardInterrupt()])
    def test_a_fault_of_ours_and_an_interrupt_are_no_difference(self, upstream, monkeypatch, fault):
        def raising(tree):
            raise fault

        monkeypatch.setitem(sys.modules["tools.upstreams.sample"].SERIES, "first", raising)
        assert run("generate", "sample").exit_code == 2


@pytest.mark.usefixtures("identity")
class TestApply:
    def test_one_commit_a_patch_on_a_new_branch(self, upstream):
        repo, row = upstream
        result = run("apply", "sample", "--to", repo.root, "--series", "top")
        assert result.exit_code == 0
        stands = "the checkout stands on it now"
        assert f"3 commits on the new branch applied-updates/top of {repo.root}; {stands}" in result.stdout
        assert repo.git("log", "--format=%an %s", f"{row.base}..HEAD").splitlines() == [
            "A Fix scripts/one.py",
            "A Fix scripts/two.py",
            "A Fix scripts/one.py",
        ]
        assert repo.git("status", "--porcelain") == ""

    def test_a_fork_gets_what_fits_and_hears_what_was_refused(self, upstream):
        repo, _ = upstream
        repo.commit({"scripts/one.py": b"new\nline 20\n", "scripts/two.py": b"nothing of the kind\n"})
        result = run("apply", "sample", "--to", repo.root, "--branch", "mine")
        assert result.exit_code == 1
        assert "scripts/two.py:1:1: unclear: refused" in result.stderr
        assert repo.read("scripts/one.py") == b"new\nline twenty\nand more\n"
        assert repo.git("symbolic-ref", "--short", "HEAD").strip() == "mine"

    def test_one_commit_is_not_commits(self, upstream):
        repo, _ = upstream
        repo.commit({"scripts/two.py": b"BETA\n"})
        result = run("apply", "sample", "--to", repo.root)
        assert result.exit_code == 0
        assert f"1 commit on the new branch applied-updates/first of {repo.root}" in result.stdout

    @pytest.mark.parametrize("verb", ["apply", "generate"])
    def test_what_the_pinned_base_refuses_too_is_no_difference(self, upstream, verb):
        repo, row = upstream
        folder = catalog.patches_folder() / "sample" / row.base / "first"
        assert run("generate", "sample", "--all", "--record").exit_code == 0
        repo.commit({"scripts/two.py": b"nothing of the kind\n"})
        words = ["--to", repo.root] if verb == "apply" else ["--base", "HEAD"]
        assert run(verb, "sample", *words).exit_code == 1
        document = json.loads((folder / "report.json").read_text())
        site = {"line": 7, "col": 1, "new_line": None, "kind": "text", "code": "unclear", "outcome": "refused"}
        wrong = [file for file in document["files"] if file["path"] == "scripts/two.py"]
        for outcome, code, exit_code in (("left", "unclear", 1), ("refused", "other", 1), ("refused", "unclear", 0)):
            wrong[0]["sites"] = [site | {"message": "as it was", "outcome": outcome, "code": code}]
            (folder / "report.json").write_text(json.dumps(document))
            if verb == "apply":
                words = [*words[:2], "--branch", f"{outcome}-{code}"]
                repo.git("checkout", "--quiet", "main")
            result = run(verb, "sample", *words)
            assert result.exit_code == exit_code
            assert "scripts/two.py:1:1: unclear: refused" in result.stderr
            said = "1 of 1 refused places is refused at the pinned base too" in result.stderr
            assert said == (exit_code == 0)

    def test_a_record_that_cannot_be_read_excuses_nothing(self, upstream):
        repo, row = upstream
        folder = catalog.patches_folder() / "sample" / row.base / "first"
        folder.mkdir(parents=True)
        (folder / "report.json").write_text("{")
        repo.commit({"scripts/two.py": b"nothing of the kind\n"})
        result = run("apply", "sample", "--to", repo.root)
        assert result.exit_code == 1
        assert "Traceback" not in result.stderr

    def test_a_second_time_there_is_nothing_to_do(self, upstream):
        repo, _ = upstream
        run("apply", "sample", "--to", repo.root)
        tip = repo.git("rev-parse", "HEAD")
        result = run("apply", "sample", "--to", repo.root, "--branch", "again")
        assert result.exit_code == 0
        assert "nothing to do" in result.stdout
        assert repo.git("rev-parse", "HEAD") == tip
        assert repo.git("branch", "--list", "again") == ""

    def test_a_dirty_tree_is_refused(self, upstream):
        repo, _ = upstream
        (repo.root / "other.txt").write_bytes(b"mine")
        result = run("apply", "sample", "--to", repo.root)
        assert result.exit_code == 2
        assert "must have no uncommitted changes" in result.stderr

    def test_a_checkout_without_a_commit_is_told_what_to_do(self, upstream, tmp_path):
        subprocess.run(["git", "init", "-q", tmp_path / "empty"], check=True)
        result = run("apply", "sample", "--to", tmp_path / "empty")
        assert result.exit_code == 2
        assert "got 'HEAD'; commit something first" in result.stderr.replace("\n", " ")

    def test_another_project_is_refused(self, upstream, make_repo):
        other = make_repo("other")
        other.commit({"README": b"x"})
        result = run("apply", "sample", "--to", other.root)
        assert result.exit_code == 2
        assert "it has no file like scripts/*.py" in result.stderr


@pytest.mark.parametrize("verb", [[], *([verb] for verb in main.commands)])
def test_help_teaches(verb):
    result = run(*verb, "--help")
    assert result.exit_code == 0
    assert len(result.output.splitlines()) > 5


@pytest.mark.processes
@pytest.mark.xdist_group("cli")
def test_the_package_works_under_another_name(tmp_path):
    shutil.copytree(Path(tools.__file__).parent, tmp_path / "other_name", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "train.py").write_bytes(WRONG)
    command = [sys.executable, "-m", "other_name", "report", "--json", "train.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "")
    assert json.loads(done.stdout)["totals"]["rewritten"] == 1


@pytest.mark.processes
@pytest.mark.xdist_group("cli")
def test_without_what_it_needs_it_says_what_to_install():
    command = [sys.executable, "-S", "-m", "tools", "report", "x.py"]  # -S: nothing that pip installed
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    folder = Path(tools.__file__).parent.parent
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert "has no `click`" in done.stderr
    assert "pip install '.[tools]'" in done.stderr
