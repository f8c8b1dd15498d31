"""The applied steps of checkpoints: from a table, from the counts beside them, from their names."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from accelerate_ext.checkpoint import StoredCounts
from accelerate_ext.ema.header import SnapshotError
from accelerate_ext.ema.inputs import InputOptions, find_sources
from accelerate_ext.ema.steps import step_from_name, step_of

pytestmark = pytest.mark.filterwarnings("ignore::accelerate_ext.ema.result.ReconstructionWarning")


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("checkpoint-500", 500),
        ("step_001000.pt", 1000),
        ("epoch=3-step=1200.ckpt", 1200),
        ("model_v2_700.safetensors", 700),
        ("global_step800", 800),
        ("iter-90-loss-0.25.pth", 90),
        ("model.safetensors", None),
    ],
)
def test_steps_are_read_from_names(tmp_path, name, step):
    assert step_from_name(tmp_path / name) == step


def test_the_applied_step_beside_a_checkpoint_goes_before_its_name(known_run, tmp_path):
    folder = tmp_path / "run" / "checkpoint-500"
    folder.mkdir(parents=True)
    save_file(known_run.model(500), folder / "model.safetensors")
    counts = {"attempted_step": 500, "applied_step": 480, "skipped_steps": 20, "skipped_in_a_row": 0}
    stored = {"format": "accelerate_ext.applied_step/1", **counts, "optimizers": [counts]}
    (folder / "applied_step.json").write_text(json.dumps(stored))
    assert [source.t for source in find_sources(tmp_path / "run")] == [480]


@pytest.mark.parametrize("kind", ["mapping", "csv", "csv with a header", "json"])
def test_steps_come_from_a_table(known_run, tmp_path, kind):
    names = {"a.safetensors": 400, "b.safetensors": 1000, "c.safetensors": 1600}
    (tmp_path / "run").mkdir()
    for name, t in names.items():
        save_file(known_run.model(t), tmp_path / "run" / name)
    table = tmp_path / ("steps.json" if kind == "json" else "steps.csv")
    head = "file,step\n" if "header" in kind else ""
    table.write_text(json.dumps(names) if kind == "json" else head + "".join(f"{n},{t}\n" for n, t in names.items()))
    options = InputOptions(steps=names if kind == "mapping" else table)
    assert [source.t for source in find_sources(tmp_path / "run", options)] == [400, 1000, 1600]
    with pytest.raises(
        SnapshotError, match=r"c\.safetensors is not in the table of steps; .* It lists: a\.safetensors"
    ):
        find_sources(tmp_path / "run", InputOptions(steps={"a.safetensors": 1, "b.safetensors": 2}))
    table.write_text("a.safetensors\n")
    with pytest.raises(SnapshotError, match="must list names and steps"):
        find_sources(tmp_path / "run", InputOptions(steps=table))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("t.csv", "", ": it lists no step$"),
        ("t.csv", "name,step\n", ": it lists no step$"),
        ("t.json", "{}", ": it lists no step$"),
        ("t.json", '{"model-100.safetensors": NaN}', "'model-100.safetensors' must be .* above 0, got nan"),
        ("t.csv", "model-100.safetensors,-5\n", "'model-100.safetensors' must be .* above 0, got -5"),
        ("t.csv", "model-100.safetensors,1\nmodel-100.safetensors,2\n", "'model-100.safetensors' twice"),
        ("t.json", '{"model-100.safetensors": 1, "model-100.safetensors": 2}', "'model-100.safetensors' twice"),
        ("t.json", '{"model-100.safetensors": null}', "must list names and steps"),
    ],
)
def test_a_table_that_tells_no_steps_is_refused_by_name(known_run, tmp_path, name, text, message):
    checkpoints = tmp_path / "checkpoints"
    checkpoints.mkdir()
    save_file(known_run.model(100), checkpoints / "model-100.safetensors")
    (tmp_path / name).write_text(text)
    with pytest.raises(SnapshotError, match=rf"t\.\w+.*{message}"):
        find_sources(checkpoints, InputOptions(steps=tmp_path / name))


@pytest.mark.parametrize("step", [0, float("inf"), "many", None])
def test_a_mapping_of_steps_is_held_to_the_same(known_run, tmp_path, step):
    save_file(known_run.model(100), tmp_path / "model-100.safetensors")
    with pytest.raises(SnapshotError, match=r"`steps` must say .* must be a finite number above 0"):
        find_sources(tmp_path, InputOptions(steps={"model-100.safetensors": step}))


def test_a_table_says_everything_that_is_wrong_with_it(known_run, tmp_path):
    save_file(known_run.model(100), tmp_path / "a-100.safetensors")
    (tmp_path / "t.csv").write_text("a,1\na,2\nb,-5\n")
    with pytest.raises(SnapshotError) as refused:
        find_sources(tmp_path, InputOptions(steps=tmp_path / "t.csv"))
    assert str(refused.value) == (
        f"{tmp_path / 't.csv'} must say the applied step of each checkpoint: it lists 'a' twice; "
        "the step of 'b' must be a finite number above 0, got -5.0"
    )


def test_what_to_add_to_a_table_is_shown(known_run, tmp_path):
    for name in ("ckpt-10.pt", "final.pt"):
        torch.save(known_run.model(1), tmp_path / name)
    with pytest.raises(SnapshotError, match=r"as `final\.pt,10000`; in Python steps=\{'final\.pt': 10000"):
        find_sources(tmp_path)


def test_a_long_table_is_told_by_its_first_ten_names(known_run, tmp_path):
    save_file(known_run.model(100), tmp_path / "other.safetensors")
    with pytest.raises(
        SnapshotError, match=r"add it or move it away\. It lists: a0, a1, a2, a3, a4, a5, a6, a7, a8, a9$"
    ):
        find_sources(tmp_path, InputOptions(steps={f"a{index}": index + 1 for index in range(12)}))


@pytest.mark.parametrize("by", ["what is listed", "the weights in it"])
def test_a_table_may_name_checkpoints_by_their_paths(known_run, tmp_path, by):
    folders = [tmp_path / run / "checkpoint" for run in "ab"]
    for t, folder in zip((800, 1600), folders, strict=True):
        folder.mkdir(parents=True)
        save_file(known_run.model(t), folder / "model.safetensors")
    paths = folders if by == "what is listed" else [folder / "model.safetensors" for folder in folders]
    found = find_sources(folders, InputOptions(steps={str(paths[0]): 800, str(paths[1]): 1600}))
    assert [source.t for source in found] == [800, 1600]


def test_a_table_may_begin_with_the_mark_of_a_spreadsheet(known_run, tmp_path):
    save_file(known_run.model(100), tmp_path / "model-100.safetensors")
    table = tmp_path / "steps.csv"
    table.write_text("model-100.safetensors,7\n", encoding="utf-8-sig")
    assert [source.t for source in find_sources(tmp_path / "model-100.safetensors", InputOptions(steps=table))] == [7]


def test_a_checkpoint_before_the_first_applied_update_is_refused_by_name(known_run, tmp_path):
    save_file(known_run.model(100), tmp_path / "model.safetensors")
    StoredCounts({"attempted": 3, "applied": 0, "skipped": 3, "skipped_in_a_row": 3}).write(tmp_path)
    with pytest.raises(SnapshotError, match=f"{re.escape(str(tmp_path))}.*no update was applied"):
        find_sources(tmp_path)


def test_the_folder_that_one_is_in_is_named_by_its_own_name(tmp_path, monkeypatch):
    folder = tmp_path / "weights"
    folder.mkdir()
    monkeypatch.chdir(folder)
    with pytest.raises(SnapshotError, match=r"`weights,10000`; in Python steps=\{'weights': 10000"):
        step_of(Path("."), Path("model.safetensors"), {})
    assert step_of(Path("."), Path("model.safetensors"), {"weights": 30}) == 30
