"""The recipes of Transformers and Accelerate: what they make of the installed releases and of ones that differ."""

from __future__ import annotations

import ast
import difflib
import importlib.util
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from tools.site import Outcome
from tools.trainer.paths import ARGUMENTS, CALLBACKS, NOTEBOOK, TRAINER
from tools.trainer.released_copy import changed_files, patched_copy
from tools.trainer.series import STEPS
from tools.trainer.skip_flag import OPTIMIZER
from tools.trees import misplaced
from tools.upstreams import accelerate, transformers


def package(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent


class Tree:
    """An installed package, with some of its files in other words."""

    date = "Thu, 01 Jan 1970 00:00:00 +0000"

    def __init__(self, name: str, changes: dict[str, bytes] | None = None, *, is_exact: bool = True) -> None:
        self.root, self.base, self.is_exact = package(name).parent, version(name), is_exact
        self.changes = changes or {}

    def read(self, path: str) -> bytes:
        if path in self.changes:
            return self.changes[path]
        return (self.root / path.removeprefix("src/")).read_bytes()

    def paths(self, *globs: str) -> list[str]:
        raise NotImplementedError


def make(name: str, changes: dict[str, bytes] | None = None, **options):
    recipe = {"transformers": transformers, "accelerate": accelerate}[name]
    return recipe.SERIES[recipe.DEFAULT_SERIES](Tree(name, changes, **options))


BOTH = pytest.mark.parametrize("name", ["transformers", "accelerate"])


@BOTH
def test_the_series_is_made_from_the_installed_release(name):
    series = make(name)
    assert series.name == name
    assert series.refused == {}
    assert len(series.patches) == {"transformers": 7, "accelerate": 1}[name]
    assert misplaced(Tree(name), series.patches) == []
    assert series.notes.strip()


@BOTH
def test_the_same_release_gives_the_same_bytes(name):
    assert make(name) == make(name, is_exact=False)


@BOTH
def test_patches_add_and_take_little(name):
    added = removed = 0
    for patch in make(name).patches:
        for change in patch.changes.values():
            lines = list(difflib.ndiff(change.before.decode().splitlines(), change.after.decode().splitlines()))
            added += sum(line.startswith("+ ") for line in lines)
            removed += sum(line.startswith("- ") for line in lines)
    assert (added, removed) < {"transformers": (160, 20), "accelerate": (10, 3)}[name]


@BOTH
def test_a_patched_release_is_reported_as_right_and_not_patched_twice(name):
    again = make(name, changed_files(make(name)))
    assert again.patches == ()
    ((site,),) = again.refused.values()
    assert site.outcome is Outcome.RIGHT
    assert site.line > 1


@BOTH
def test_every_site_names_its_line_before_and_after(name):
    for patch in make(name).patches:
        for path, sites in patch.sites.items():
            change = patch.changes[path]
            assert sites
            for site in sites:
                assert site.outcome is Outcome.REWRITTEN
                assert 1 <= site.line <= change.before.count(b"\n") + 1
                assert site.new_line is not None and 1 <= site.new_line <= change.after.count(b"\n") + 1


@BOTH
def test_bodies_are_wrapped_and_subjects_are_short(name):
    for patch in make(name).patches:
        assert len(patch.subject) <= 100
        assert all(len(line) <= 72 for line in patch.body.splitlines())


def test_the_gate_comes_last_and_room_is_made_in_order():
    assert [step.name for step in STEPS] == [
        "count-skipped-steps",
        "resume-by-attempts",
        "epochs-for-skipped-steps",
        "end-after-skipped-step",
        "progress-follows-max-steps",
        "streams-go-on",
        "count-applied-updates",
    ]


# Something of the release that a patch builds on, and what stands there instead: each makes a near miss.
NEAR_MISSES = [
    pytest.param(TRAINER, "self.optimizer.step()", "self.optimizer.step(None)", "count-applied", id="step"),
    pytest.param(TRAINER, "model.zero_grad()", "model.zero_grad(True)", "count-applied", id="zeroing"),
    pytest.param(TRAINER, "self.state.global_step += 1", "self.state.global_step += n", "count-applied", id="count"),
    pytest.param(TRAINER, "self._tr_loss += tr_loss_step", "self.loss += tr_loss_step", "count-applied", id="loss"),
    pytest.param(TRAINER, "self.lr_scheduler.step()", "self.scheduler.step()", "count-applied", id="scheduler"),
    pytest.param(
        TRAINER,
        "if not self.accelerator.optimizer_step_was_skipped:",
        "if not self.accelerator.optimizer_step_was_skipped or self.args.force:",
        "count-applied",
        id="flag",
    ),
    pytest.param(TRAINER, "for update_step in range(", "for update_step in reversed(", "streams", id="updates"),
    pytest.param(TRAINER, "num_train_epochs = sys.maxsize", "num_train_epochs = 10**9", "streams", id="endless"),
    pytest.param(TRAINER, "for epoch in range(", "for epoch in tuple(", "epochs", id="epochs"),
    pytest.param(TRAINER, "def _init_training_state(", "def _start(", "resume", id="resume"),
    pytest.param(TRAINER, "import inspect\n", "import inspect\nimport itertools\n", "epochs", id="import"),
    pytest.param(CALLBACKS, "dataclasses.asdict(self)", "vars(self)", "count-skipped", id="json"),
    pytest.param(CALLBACKS, "stateful_callbacks: list", "callbacks: list", "count-skipped", id="fields"),
    pytest.param(
        CALLBACKS, "if state.global_step >= state.max_steps:", "if state.is_over():", "end-after", id="end of a run"
    ),
    pytest.param(CALLBACKS, "self.training_bar.close()", "self.bar.close()", "progress", id="bar"),
    pytest.param(NOTEBOOK, "_require(self.training_tracker", "_need(self.training_tracker", "progress", id="notebook"),
    pytest.param(ARGUMENTS, "max_steps (`int`", "maximum (`int`", "count-applied", id="docstring"),
]


@pytest.mark.parametrize(("path", "old", "new", "step"), NEAR_MISSES)
def test_a_trainer_of_another_shape_is_refused_with_a_place_and_a_reason(path, old, new, step):
    text = Tree("transformers").read(path).decode()
    assert old in text
    series = make("transformers", {path: text.replace(old, new).encode()}, is_exact=False)
    assert series.patches == (), "half a series would lose checkpoints"
    sites = [site for sites in series.refused.values() for site in sites]
    assert any(site.kind.startswith(step) for site in sites)
    for site in sites:
        assert site.outcome is Outcome.REFUSED
        assert site.line >= 1
        assert "must" in site.message
        assert "port this patch" in site.message


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("self._is_overflow = True", "self._is_overflow = self.scaler.get_scale() < before"),
        ("_accelerate_step_called = True", "_was_called = True"),
        ("def step_was_skipped(", "def was_skipped("),
        ("if self.gradient_state.sync_gradients:\n            if self.scaler", "if True:\n            if self.scaler"),
    ],
)
def test_another_way_to_learn_about_skips_is_refused(old, new):
    text = Tree("accelerate").read(OPTIMIZER).decode()
    assert old in text
    series = make("accelerate", {OPTIMIZER: text.replace(old, new).encode()})
    assert series.patches == ()
    ((site,),) = series.refused.values()
    assert site.outcome is Outcome.REFUSED
    assert "exactly one" in site.message


def test_all_places_that_are_missing_are_named_at_once():
    text = Tree("transformers").read(TRAINER).decode()
    for old in ("model.zero_grad()", "for epoch in range(", "def _init_training_state("):
        text = text.replace(old, old.replace("(", "_(", 1).replace("range_(", "tuple("))
    kinds = {site.kind for site in make("transformers", {TRAINER: text.encode()}).refused[TRAINER]}
    assert {"resume-by-attempts", "epochs-for-skipped-steps", "count-applied-updates"} <= kinds


def test_a_file_that_is_missing_or_does_not_parse_is_refused():
    class Bare(Tree):
        def read(self, path: str) -> bytes:
            if path == NOTEBOOK:
                raise FileNotFoundError(path)
            return super().read(path)

    series = transformers.SERIES["transformers"](Bare("transformers"))
    assert (series.patches, list(series.refused)) == ((), [NOTEBOOK])
    series = make("transformers", {CALLBACKS: b"class TrainerState(\n"})
    assert series.patches == ()
    assert {site.line for site in series.refused[CALLBACKS]} == {1}


STEP_END = """\
    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs):
        # Log
"""
BEGIN = "    def on_train_begin(self, args, state, control, **kwargs):\n        pass\n\n"
NUMBERS = "self, max_steps, num_update_steps_per_epoch, num_train_epochs, resume_from_checkpoint"


@pytest.mark.parametrize(
    ("path", "old", "new", "message"),
    [
        (CALLBACKS, STEP_END, BEGIN + STEP_END, "`DefaultFlowCallback` must not have `on_train_begin` yet"),
        (
            TRAINER,
            NUMBERS,
            "self, max_steps, resume_from_checkpoint",
            "must take the numbers of epochs and of updates",
        ),
    ],
)
def test_a_place_that_another_change_has_taken_is_refused_by_name(path, old, new, message):
    text = Tree("transformers").read(path).decode()
    assert text.count(old) == 1
    series = make("transformers", {path: text.replace(old, new).encode()}, is_exact=False)
    assert series.patches == ()
    assert any(message in site.message for site in series.refused[path])


@pytest.mark.parametrize(("name", "path"), [("transformers", TRAINER), ("accelerate", OPTIMIZER)])
def test_without_its_main_file_a_release_is_refused_and_not_taken_for_right(name, path):
    class Bare(Tree):
        def read(self, path_read: str) -> bytes:
            if path_read == path:
                raise FileNotFoundError(path)
            return super().read(path_read)

    recipe = {"transformers": transformers, "accelerate": accelerate}[name]
    series = recipe.SERIES[name](Bare(name))
    assert series.patches == ()
    assert {site.outcome for site in series.refused[path]} == {Outcome.REFUSED}
    assert any("the file must exist" in site.message for site in series.refused[path])


def test_a_release_whose_last_step_is_not_evaluated_by_steps_stays_like_that():
    text = Tree("transformers").read(CALLBACKS).decode()
    tree = ast.parse(text)
    (flow,) = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "DefaultFlowCallback"]
    step_end = next(node for node in flow.body if isinstance(node, ast.FunctionDef) and node.name == "on_step_end")
    ends = [node for node in step_end.body if isinstance(node, ast.If) and "max_steps" in ast.unparse(node.test)]
    evaluation = next(node for node in ends[0].body if isinstance(node, ast.If) and "eval_delay" in ast.unparse(node))
    lines = text.splitlines(keepends=True)
    del lines[evaluation.lineno - 1 : evaluation.end_lineno]
    series = make("transformers", {CALLBACKS: "".join(lines).encode()})
    after = changed_files(series)[CALLBACKS].decode()
    assert after.count("control.should_evaluate = True") == "".join(lines).count("control.should_evaluate = True")


# What the two upstreams lint with, at 119 columns.
LINTED = {
    "transformers": (
        "--select=C,E,F,I,W,RUF013,PERF102,PLC1802,PLC0208,SIM,UP",
        "--ignore=C901,E501,E741,F402,F823,SIM1,SIM300,SIM212,SIM905,UP004,UP007,UP009,UP015,UP028,UP031,UP045",
        "--config=lint.isort.known-first-party=['transformers']",
    ),
    "accelerate": (
        "--select=B009,B010,E,F,I,W,UP",
        "--ignore=E402,E501,E722,E741,F841,UP006,UP007,UP035,UP045",
        "--config=lint.isort.known-first-party=['accelerate']",
    ),
}
ALL = ("--isolated", "--no-cache", "--line-length=119", "--target-version=py310")


@BOTH
def test_the_changed_files_are_clean_under_the_rules_of_the_upstream(name, tmp_path):
    ruff = [sys.executable, "-m", "ruff"]
    files = changed_files(make(name))
    for path, data in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(data)
    isort = "--config=lint.isort.lines-after-imports=2"
    for command in (["check", *ALL, *LINTED[name], isort], ["format", *ALL, "--check"]):
        result = subprocess.run([*ruff, *command, str(tmp_path)], capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stdout + result.stderr


def test_a_copy_is_made_of_links_and_of_the_changed_files(tmp_path):
    original = tmp_path / "site" / "thing"
    (original / "deep" / "er").mkdir(parents=True)
    for name in ("__init__.py", "a.py", "deep/__init__.py", "deep/b.py", "deep/er/c.py"):
        (original / name).write_text(f"# {name}\n")
    (original / "__pycache__").mkdir()
    folder = patched_copy(original, {"src/thing/deep/b.py": b"# new\n"}, tmp_path / "copy")
    assert (folder / "thing" / "deep" / "b.py").read_bytes() == b"# new\n"
    assert (original / "deep" / "b.py").read_text() == "# deep/b.py\n"
    assert (folder / "thing" / "a.py").resolve() == original / "a.py"
    assert (folder / "thing" / "deep" / "er" / "c.py").read_text() == "# deep/er/c.py\n"
    assert not (folder / "thing" / "__pycache__").exists()


def test_where_links_need_a_privilege_the_rest_is_copied(tmp_path, monkeypatch):
    original = tmp_path / "thing"
    (original / "deep").mkdir(parents=True)
    for name in ("__init__.py", "a.py", "deep/b.py"):
        (original / name).write_text(f"# {name}\n")

    def refuse(self, target, target_is_directory=False):
        raise OSError(1314, "A required privilege is not held by the client")

    monkeypatch.setattr(Path, "symlink_to", refuse)
    folder = patched_copy(original, {"src/thing/a.py": b"# new\n"}, tmp_path / "copy") / "thing"
    found = {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*.py")}
    assert found == {"__init__.py": "# __init__.py\n", "a.py": "# new\n", "deep/b.py": "# deep/b.py\n"}
    assert not any(path.is_symlink() for path in folder.rglob("*"))


@pytest.mark.parametrize("path", ["src/other/a.py", "thing/a.py", "src/thing/missing.py"])
def test_a_copy_refuses_files_that_the_package_does_not_have(path, tmp_path):
    (tmp_path / "thing").mkdir()
    with pytest.raises(ValueError, match="must"):
        patched_copy(tmp_path / "thing", {path: b""}, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
