"""The command line as people run it: output, exit codes, errors without tracebacks."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from accelerate_ext import cli
from accelerate_ext.ema import profile
from accelerate_ext.ema.sweep import Point, Sweep

STEPS = 800


@pytest.fixture
def snapshots(tmp_path) -> Path:
    """8 snapshots of two averages of a random walk of one tensor."""
    walk = np.random.default_rng(3).standard_normal((STEPS, 300)).cumsum(axis=0) * 1e-3
    folder = tmp_path / "snapshots"
    folder.mkdir()
    for t in range(100, STEPS + 1, 100):
        for width in (0.05, 0.10):
            write(folder, t, width, profile.step_weights(t, profile.gamma_from_sigma_rel(width)) @ walk[:t])
    return folder


def write(folder: Path, t: int, width: float, values: np.ndarray, suffix: str = "", **metadata: str) -> None:
    described = {
        "format": "pt",
        "snapshot_format": "accelerate_ext.ema/1",
        "t": str(t),
        "unit": "updates",
        "step": str(t),
        "sigma_rel": f"{width:.17g}",
        "gamma": f"{profile.gamma_from_sigma_rel(width):.17g}",
        "run": "run-1",
        "parameter_set": "set-1",
        "dtype": "float32",
        "rounding_error": "0",
        "copied": "[]",
        "tied": "{}",
    }
    tensors = {"layer.weight": torch.from_numpy(values).float().view(-1, 10)}
    save_file(tensors, folder / f"{t:012d}-{width:.6f}{suffix}.safetensors", metadata=described | metadata)


@pytest.fixture
def run(capsys):
    """Runs a command in this process. Returns exit code, stdout and stderr."""

    def call(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as exit_:
            cli.main(["ema", *map(str, arguments)])
        out, err = capsys.readouterr()
        return int(exit_.value.code or 0), out, err

    return call


def test_plan_says_when_and_what(run):
    code, out, _ = run("plan", 10_000, "--count", 16, "-s", 0.05, "-s", 0.10, "--parameters", 1_000_000)
    assert code == 0
    assert "keep sigma_rel  0.05, 0.1" in out and "10000" in out and "128 MB in float32" in out
    code, out, _ = run("plan", 10_000, "--max-error", 0.01, "--json")
    assert code == 0 and json.loads(out)["worst_error"] <= 0.01


def test_a_plan_that_cannot_be_kept_could_not_run(run):
    code, out, err = run("plan", 10_000, "--count", 2, "--max-error", 1e-6)
    assert (code, out) == (2, "") and "above max_error" in err and "Traceback" not in err


def test_info_lists_what_is_stored_and_what_to_expect(run, snapshots):
    code, out, _ = run("info", snapshots)
    assert code == 0 and out.count("snapshot ") == 16
    assert "16 stored, 300 elements each, up to step 800" in out
    code, out, _ = run("info", snapshots, "--json")
    got = json.loads(out)
    assert len(got["sources"]) == 16 and got["incomplete"] == []
    assert got["expected_errors"]["0.15"] == pytest.approx(0.0030854684, rel=0.1)  # the walk of constant rate has this


def test_info_finds_an_incomplete_snapshot(run, snapshots):
    write(snapshots, 850, 0.05, np.zeros(300), ".rank00000-of-00002")
    code, out, _ = run("info", snapshots)
    assert code == 1 and "incomplete: " in out and "rank00000-of-00002" in out


def test_fit_shows_weights_and_compares_with_a_bar(run, snapshots):
    code, out, _ = run("fit", snapshots, "-s", 0.15)
    assert code == 0 and "expected error 0.003" in out and "-> 0.15" in out and len(out.splitlines()) == 20
    code, out, _ = run("fit", snapshots, "-s", 0.15, "--json", "--max-error", 1e-3)
    assert code == 1
    assert sum(json.loads(out)["results"][0]["weights"]) == pytest.approx(1)


def test_a_dry_run_says_size_memory_and_error_and_writes_nothing(run, snapshots, tmp_path):
    code, out, _ = run("reconstruct", snapshots, "-s", 0.15, "-o", tmp_path / "out.safetensors", "--dry-run")
    assert code == 0 and "reads 19.2 kB, writes 1.2 kB, works in" in out and "expected error 0.003" in out
    assert not (tmp_path / "out.safetensors").exists()


def test_reconstruct_writes_the_file_and_says_where(run, snapshots, tmp_path):
    target = tmp_path / "out.safetensors"
    code, out, err = run("reconstruct", snapshots, "-s", 0.10, "-o", target, "--dtype", "bfloat16")
    assert code == 0 and f"-> {target}" in out and "elements" in err
    stored = load_file(snapshots / "000000000800-0.100000.safetensors")["layer.weight"]
    assert torch.equal(load_file(target)["layer.weight"], stored.bfloat16())
    code, out, err = run("reconstruct", snapshots, "-s", 0.075, "-s", 0.15, "-o", tmp_path / "many", "--json")
    assert code == 0 and err == "" and [Path(r["path"]).exists() for r in json.loads(out)["results"]] == [True, True]


def test_reconstruct_gives_tensors_their_own_width(run, snapshots, tmp_path):
    target = tmp_path / "out.safetensors"
    code, out, _ = run("reconstruct", snapshots, "-s", 0.15, "--width", "layer.*=0.05", "-o", target)
    assert code == 0 and "layer.*: sigma_rel 0.05, expected error" in out
    stored = load_file(snapshots / "000000000800-0.050000.safetensors")["layer.weight"]
    assert torch.equal(load_file(target)["layer.weight"], stored)
    for wrong in ("layer.*", "=0.05", "layer.*=wide", "layer.*=0.5"):
        code, _, err = run("reconstruct", snapshots, "-s", 0.15, "--width", wrong, "-o", target, "--overwrite")
        assert code == 2 and "--width" in err


def test_a_visible_error_is_a_warning_and_a_large_one_a_refusal(run, snapshots, tmp_path):
    code, _, err = run("reconstruct", snapshots, "-s", 0.02, "-o", tmp_path / "a.safetensors")
    assert code == 0 and re.search(r"warning: expected error for sigma_rel 0\.02: 1[5-9]\.\d%", err)
    code, out, err = run("reconstruct", snapshots, "-s", 0.004, "-o", tmp_path / "b.safetensors")
    assert (code, out) == (2, "") and "error: the expected error must not be above 50%" in err
    assert run("reconstruct", snapshots, "-s", 0.004, "-o", tmp_path / "b.safetensors", "--force")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["reconstruct", "missing", "-s", 0.1, "-o", "x.safetensors"], "error: there is no file or folder missing"),
        (
            ["reconstruct", ".", "-s", 0.4, "-o", "x.safetensors"],
            "`sigma_rel` must lie between 0 and 0.2887 (the uniform average), got 0.4",
        ),
        (["reconstruct", ".", "-s", 0.1], "say where to, with --output"),
        (["reconstruct", ".", "-s", 0.1, "-o", "x.safetensors"], "is not a folder of snapshots or checkpoints"),
        (["reconstruct", "-s", 0.1, "-o", "x.safetensors"], "Missing argument"),
        (["unknown"], "No such command"),
    ],
)
def test_what_could_not_run_exits_with_2_and_one_error(run, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    code, out, err = run(*arguments)
    assert (code, out) == (2, "") and message in err and "Traceback" not in err


def test_check_passes_on_good_snapshots_and_finds_a_wrong_one(run, snapshots):
    code, out, _ = run("check", snapshots)
    assert code == 0 and "000000000800-0.100000.safetensors, rebuilt from the others" in out
    write(snapshots, 800, 0.10, np.random.default_rng(0).standard_normal(300))
    code, out, _ = run("check", snapshots, "--json")
    assert code == 1 and json.loads(out)["measured_error"] > 0.05


def test_thin_says_what_would_go_and_removes_it(run, snapshots):
    code, out, _ = run("thin", snapshots, "--keep", 12, "--dry-run")
    assert code == 0 and "4 would go, 12 stay" in out and len(list(snapshots.iterdir())) == 16
    code, out, _ = run("thin", snapshots, "--keep", 12, "--json")
    assert code == 0 and len(json.loads(out)["removed"]) == 4 and len(list(snapshots.iterdir())) == 12


def test_sweep_measures_with_a_command_and_plots_compare_runs(run, snapshots, tmp_path):
    code = "import sys, math; print(2 + math.log(float(sys.argv[2]) / float(sys.argv[3])) ** 2)"
    for name, at in (("a", 0.08), ("b", 0.12)):
        command = f"{sys.executable} -c '{code}' {{path}} {{sigma_rel}} {at}"
        widths = [item for width in (0.05, 0.07, 0.1, 0.14, 0.2) for item in ("-s", width)]
        results = ["--results", tmp_path / f"{name}.json", "--csv", tmp_path / f"{name}.csv", "--label", f"lr {name}"]
        exit_code, out, err = run("sweep", snapshots, "--metric", command, *results, *widths)
        assert exit_code == 0 and f"best: sigma_rel {at:.4f}, value 2" in out and "widths" in err
    assert (tmp_path / "a.csv").read_text().startswith("label,sigma_rel,value,predicted_error\nlr a,0.05,")
    figure = tmp_path / "sweep.svg"
    assert run("plot", "sweep", tmp_path / "a.json", tmp_path / "b.json", "--metric", "FID", "-o", figure)[0] == 0
    assert figure.stat().st_size > 1000


@pytest.mark.parametrize(("sign", "edge"), [(1, "smallest"), (-1, "largest")])
def test_sweep_says_where_the_best_width_may_lie_outside(run, snapshots, tmp_path, sign, edge):
    command = f"{sys.executable} -c 'import sys; print({sign} * float(sys.argv[2]))' {{path}} {{sigma_rel}}"
    widths = [item for width in (0.05, 0.1, 0.2) for item in ("-s", width)]
    code, out, _ = run("sweep", snapshots, "--metric", command, "--results", tmp_path / "a.json", *widths)
    assert code == 0 and "(measured)" in out
    assert f"the {edge} width measured" in out and "may lie outside" in out and "--sigma-rel" in out


def test_the_help_of_sweep_shows_what_is_filled_in_by_an_example(run):
    out = run("sweep", "--help")[1]
    assert '--metric "python evaluate.py --weights {path} --name ema-{sigma_rel}"' in out
    assert "{path} becomes" in out


@pytest.mark.parametrize("names", [("first.json", "second.json"), ("one/sweep.json", "two/sweep.json")])
def test_sweeps_without_a_label_are_named_by_their_files(run, tmp_path, monkeypatch, names):
    drawn = []
    monkeypatch.setattr("accelerate_ext.ema.plot.save", lambda figure, path: drawn.append(figure) or path)
    for name in names:
        Sweep({}, (Point(0.1, 1.0, 0.0),)).save(tmp_path / name)
    labelled = tmp_path / "x.json"
    Sweep({}, (Point(0.1, 2.0, 0.0),), "lr 1e-3").save(labelled)
    assert run("plot", "sweep", *(tmp_path / name for name in names), labelled, "-o", tmp_path / "a.svg")[0] == 0
    named = [text.get_text() for text in drawn[0].axes[0].get_legend().get_texts()]
    ends = [name.removesuffix(".json") for name in names]
    assert all(label.endswith(end) for label, end in zip(named, [*ends, "lr 1e-3"], strict=True))
    assert names[0] != "first.json" or named == ["first", "second", "lr 1e-3"]


def test_sweep_gives_json_to_programs_and_writes_no_table_unless_asked(run, snapshots, tmp_path):
    code = "import sys; print(float(sys.argv[2]))"
    command = f"{sys.executable} -c '{code}' {{path}} {{sigma_rel}}"
    results = tmp_path / "a.json"
    exit_code, out, err = run("sweep", snapshots, "--metric", command, "--results", results, "-s", 0.1, "--json")
    assert (exit_code, err) == (0, "")
    assert [(point["sigma_rel"], point["value"]) for point in json.loads(out)["points"]] == [(0.1, 0.1)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "snapshots"]


def test_a_sweep_without_a_finite_value_names_no_best_one(run, snapshots, tmp_path):
    command = f"{sys.executable} -c 'print(float(\"nan\"))' {{path}}"
    exit_code, out, _ = run("sweep", snapshots, "--metric", command, "--results", tmp_path / "a.json", "-s", 0.1)
    assert exit_code == 0
    assert "nan" in out and "best" not in out


def test_a_command_that_is_interrupted_says_so_without_a_traceback(run, snapshots, monkeypatch):
    def interrupt(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("accelerate_ext.ema.commands.find_sources", interrupt)
    code, out, err = run("info", snapshots)
    assert (code, out, err.strip()) == (2, "", "interrupted")


def test_a_metric_that_fails_could_not_run(run, snapshots, tmp_path):
    code, _, err = run("sweep", snapshots, "--metric", "false {path}", "--results", tmp_path / "a.json", "-s", 0.1)
    assert code == 2 and "ended with exit code 1" in err


@pytest.mark.parametrize("what", ["profiles", "fit", "errors"])
def test_plots_are_written_where_asked(run, snapshots, tmp_path, what):
    target = tmp_path / f"{what}.png"
    arguments = {"profiles": ["-s", 0.1], "fit": [snapshots, "-s", 0.15], "errors": ["-s", 0.15]}[what]
    code, out, _ = run("plot", what, *arguments, "-o", target)
    assert code == 0 and out.strip() == str(target) and target.stat().st_size > 1000
    assert run("plot", what, *arguments, "-o", tmp_path / "figure.txt")[0] == 2


@pytest.mark.processes
@pytest.mark.xdist_group("ema-cli")
def test_the_installed_command_runs(snapshots):
    code = "import sys; from accelerate_ext.cli import main; main()"
    ran = subprocess.run(
        [sys.executable, "-c", code, "ema", "info", str(snapshots), "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert len(json.loads(ran.stdout)["sources"]) == 16


def test_a_width_of_some_tensors_says_what_it_lacks(run, snapshots):
    code, _, err = run("reconstruct", snapshots, "-s", 0.1, "--width", "foo", "--dry-run")
    assert code == 2 and "'foo' must be PATTERN=SIGMA_REL" in err
