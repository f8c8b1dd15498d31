"""What a sweep may measure by: functions, commands, and what neither is."""

from __future__ import annotations

import sys
import warnings

import pytest
import torch

from accelerate_ext.ema.metric import MetricError
from accelerate_ext.ema.sweep import sweep


def test_a_command_is_given_the_file_and_prints_the_number(known_run, tmp_path):
    known_run.save_all(8)
    code = "import os, sys; print('loading'); print(os.path.getsize(sys.argv[1]) * float(sys.argv[2]))"
    got = sweep(
        known_run.folder,
        [sys.executable, "-c", code, "{path}", "{sigma_rel}"],
        tmp_path / "s.json",
        (0.10,),
        keep=True,
    )
    built = tmp_path / "s-averages" / "reconstructed-000000001600-0.100000.safetensors"
    assert got.points[0].value == pytest.approx(built.stat().st_size * 0.10)


@pytest.mark.parametrize(
    ("command", "match"),
    [
        (f"{sys.executable} -c 'import sys; sys.exit(\"no GPU\")' {{path}}", "exit code 1:\nno GPU"),
        (f"{sys.executable} -c 'print(1.5, 2)' {{path}}", "must be a number, it is '1.5 2'"),
        (f"{sys.executable} -c pass {{path}}", "must be a number, it is nothing"),
        (f"{sys.executable} -c pass", "must say where the file goes, with {path}"),
        ("no-such-program {path}", "cannot run no-such-program"),
    ],
    ids=["it fails", "two numbers", "no output", "no path", "no program"],
)
def test_a_command_that_gives_no_number_is_an_error(known_run, tmp_path, command, match):
    known_run.save_all(8)
    with pytest.raises(MetricError, match=match):
        sweep(known_run.folder, command, tmp_path / "s.json", (0.10,))


def test_a_metric_may_return_a_tensor_with_its_graph(known_run, tmp_path):
    known_run.save_all(8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = sweep(known_run.folder, lambda path: torch.ones(1, requires_grad=True) * 2, tmp_path / "s.json", (0.1,))
    assert got.points[0].value == 2.0


@pytest.mark.parametrize(
    ("metric", "error", "match"),
    [
        ("program {sigma_rel}", MetricError, "must say where the file goes, with {path}"),
        ("program '{path}", MetricError, "cannot be taken apart .*No closing quotation"),
        ("", MetricError, "must say where the file goes, with {path}"),
        (
            "program {path} --name=w-{sigma}",
            MetricError,
            "{path} and {sigma_rel} are filled into a command, {sigma} is",
        ),
        (5, TypeError, "`metric` must be a function or a command, got int"),
    ],
)
def test_a_metric_that_is_none_is_refused_before_anything_is_built(known_run, tmp_path, metric, error, match):
    known_run.save_all(8)
    with pytest.raises(error, match=match):
        sweep(known_run.folder, metric, tmp_path / "new" / "s.json", (0.10,))
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("metric", "match"),
    [
        (lambda path: 1 / 0, "0.100000.safetensors: ZeroDivisionError: division by zero"),
        (lambda path: None, "must return a number, it returned None"),
        (lambda path: "good", "must return a number, it returned 'good'"),
    ],
)
def test_a_function_that_fails_is_an_error_that_names_the_file_and_leaves_nothing_behind(
    known_run, tmp_path, metric, match
):
    known_run.save_all(8)
    with pytest.raises(MetricError, match=match):
        sweep(known_run.folder, metric, tmp_path / "s.json", (0.10,))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["snapshots"]
