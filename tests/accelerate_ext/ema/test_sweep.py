"""Sweeps over widths: each measured once, kept at once, continued later; and the best width."""

from __future__ import annotations

import csv
import functools
import io
import json
import math
import os

import pytest
from safetensors.torch import load_file, save_file

from accelerate_ext.ema import InputOptions, ReconstructionWarning
from accelerate_ext.ema.header import SnapshotError
from accelerate_ext.ema.metric import MetricError
from accelerate_ext.ema.sweep import Point, Sweep, sweep

WIDTHS = (0.05, 0.075, 0.11, 0.15, 0.2)


def sweep_of(values, direction="min"):
    return Sweep({}, tuple(Point(width, value, 0.0) for width, value in values.items()), "", direction)


def parabola(width, at=0.12):
    return 3 + 2 * math.log(width / at) ** 2


@pytest.fixture
def distance_to(known_run):
    """A metric with a known optimum: the distance from the true average of width 0.12."""
    known_run.save_all(16)

    def metric(path):
        metric.calls.append(path.name)
        return known_run.error(load_file(path), 1600, 0.12)

    metric.calls = []
    return metric


def test_every_width_is_measured_on_the_average_that_it_names(known_run, tmp_path, distance_to):
    got = sweep(known_run.folder, distance_to, tmp_path / "sweep.json", WIDTHS)
    assert [point.sigma_rel for point in got.points] == list(WIDTHS)
    assert min(got.points, key=lambda point: point.value).sigma_rel == 0.11
    assert len(distance_to.calls) == 5 and "0.075000" in distance_to.calls[1]
    assert all(point.predicted_error < 0.01 for point in got.points)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["snapshots", "sweep.json"]


def test_a_sweep_goes_on_where_it_stopped(known_run, tmp_path, distance_to):
    def fails(path):
        if len(distance_to.calls) == 3:
            raise MetricError("stopped")
        return distance_to(path)

    fails.__qualname__ = distance_to.__qualname__
    with pytest.raises(MetricError, match="stopped"):
        sweep(known_run.folder, fails, tmp_path / "sweep.json", WIDTHS, batch=2)
    assert len(Sweep.load(tmp_path / "sweep.json").points) == 3
    got = sweep(known_run.folder, distance_to, tmp_path / "sweep.json", (*WIDTHS, 0.06))
    assert len(distance_to.calls) == 6 and len(got.points) == 6
    assert sweep(known_run.folder, distance_to, tmp_path / "sweep.json", WIDTHS) == got
    assert len(distance_to.calls) == 6


@pytest.mark.parametrize("change", [{"step": 800}, {"fit": "profile"}, {"dtype": "bfloat16"}, {"direction": "max"}])
def test_results_of_another_sweep_are_not_mixed_in(known_run, tmp_path, distance_to, change):
    sweep(known_run.folder, distance_to, tmp_path / "sweep.json", (0.10,))
    before = (tmp_path / "sweep.json").read_text()
    with pytest.raises(SnapshotError, match=f"another sweep .*{next(iter(change))}"):
        sweep(known_run.folder, distance_to, tmp_path / "sweep.json", (0.10,), **change)
    assert (tmp_path / "sweep.json").read_text() == before


def test_results_of_another_training_in_the_same_folder_are_not_mixed_in(known_run, tmp_path, distance_to):
    sweep(known_run.folder, distance_to, tmp_path / "sweep.json", (0.10,))
    for t in range(100, 1700, 100):
        for width in (0.05, 0.10):
            known_run.save(t, width, run="run-2")
    with pytest.raises(SnapshotError, match=r"another sweep \(training: 'run run-1', now 'run run-2'\); name another"):
        sweep(known_run.folder, distance_to, tmp_path / "sweep.json", (0.10,))
    assert len(distance_to.calls) == 1


@pytest.mark.parametrize("sharded", [False, True])
def test_checkpoints_that_were_written_anew_make_another_sweep(known_run, tmp_path, sharded):
    def save():
        for step in (100, 200):
            folder = tmp_path / "runs" / f"checkpoint-{step}"
            folder.mkdir(parents=True, exist_ok=True)
            part = "model-00001-of-00001.safetensors" if sharded else "model.safetensors"
            save_file(known_run.model(step), folder / part)
            os.utime(folder / part, ns=(times.pop(), 10**18 + len(times)))
            if sharded:
                index = folder / "model.safetensors.index.json"
                index.write_text(json.dumps({"weight_map": dict.fromkeys(known_run.model(step), part)}))
                os.utime(index, ns=(0, 0))

    times = [1, 2, 3, 4]
    arguments = (tmp_path / "runs", lambda path: 1.0, tmp_path / "s.json", (0.2,))
    save()
    first = sweep(*arguments, force=True)
    assert sweep(*arguments, force=True) == first
    save()
    with pytest.raises(SnapshotError, match=r"another sweep \(training: "):
        sweep(*arguments, force=True)


def test_results_that_do_not_say_their_training_are_refused_with_the_reason(known_run, tmp_path, distance_to):
    results = tmp_path / "sweep.json"
    sweep(known_run.folder, distance_to, results, (0.10,))
    stored = json.loads(results.read_text())
    del stored["settings"]["training"]
    results.write_text(json.dumps(stored))
    with pytest.raises(SnapshotError, match=r"does not say which training .* an earlier version wrote it"):
        sweep(known_run.folder, distance_to, results, (0.10,))


def test_a_value_that_is_not_finite_is_kept_as_missing(known_run, tmp_path):
    known_run.save_all(8)
    got = sweep(
        known_run.folder, lambda path: math.inf if "0.100" in path.name else 2.0, tmp_path / "s.json", (0.05, 0.10)
    )
    assert json.loads((tmp_path / "s.json").read_text())["points"][1]["value"] is None
    assert got.best() == (0.05, 2.0)
    assert math.isnan(Sweep.load(tmp_path / "s.json").points[1].value)


def test_widths_that_cannot_be_built_are_left_out_unless_forced(known_run, tmp_path):
    known_run.save_all(4, (0.10,))
    got = sweep(known_run.folder, lambda path: 1.0, tmp_path / "s.json", (0.005, 0.10))
    assert [point.sigma_rel for point in got.points] == [0.10]
    got = sweep(known_run.folder, lambda path: 1.0, tmp_path / "f.json", (0.005, 0.10), force=True)
    assert got.points[0].predicted_error > 0.5


@pytest.mark.parametrize("direction", ["min", "max"])
def test_the_best_width_is_found_between_the_measured_ones(direction):
    sign = 1 if direction == "min" else -1
    got = sweep_of({width: sign * parabola(width) for width in (0.05, 0.075, 0.10, 0.15, 0.2, 0.25)}, direction).best()
    assert got == pytest.approx((0.12, sign * 3))


def test_points_far_from_the_best_one_do_not_bend_the_parabola():
    values = {0.02: 0.1703, 0.05: 0.1671, 0.1: 0.1676, 0.2: 0.2306}
    width, value = sweep_of(values).best()
    assert 0.05 < width < 0.1
    assert value == pytest.approx(0.1670, abs=1e-4)
    assert sweep_of({0.02: 0.1703, 0.05: 0.1671, 0.1: 0.1676}).best() == (width, value)


def test_an_optimum_at_the_border_is_the_measured_one():
    assert sweep_of({width: width for width in WIDTHS}).best() == (0.05, 0.05)
    assert sweep_of({0.05: 2.0, 0.1: 1.0}).best() == (0.1, 1.0)
    assert sweep_of({0.05: math.nan}).best() is None


@pytest.mark.parametrize(
    ("values", "edge"),
    [
        ({width: width for width in WIDTHS}, "smallest"),
        ({width: -width for width in WIDTHS}, "largest"),
        ({0.05: 2.0, 0.1: 1.0, 0.2: math.nan}, "largest"),
        ({0.05: math.nan, 0.1: 1.0, 0.2: 3.0}, "smallest"),
        ({0.1: 1.0}, "only"),
        ({0.1: math.nan}, None),
        ({width: parabola(width) for width in WIDTHS}, None),
        ({0.05: 1.0, 0.1: 0.5, 0.2: 1.5}, None),
        ({0.03: 5.0, 0.05: 1.0, 0.1: 1.0, 0.2: 1.5}, None),
    ],
)
@pytest.mark.parametrize("direction", ["min", "max"])
def test_a_best_width_at_the_end_of_the_range_is_told_apart(values, edge, direction):
    sign = 1 if direction == "min" else -1
    got = sweep_of({width: sign * value for width, value in values.items()}, direction)
    assert got.edge == edge
    assert got.is_estimated == (got.best() is not None and got.best()[0] not in values)
    assert (got.to_dict()["best"] or {"edge": None})["edge"] == edge


def test_results_are_also_a_table():
    rows = list(csv.DictReader(io.StringIO(sweep_of({0.05: 2.0, 0.1: 1.0}).to_csv())))
    assert [(float(row["sigma_rel"]), float(row["value"])) for row in rows] == [(0.05, 2.0), (0.1, 1.0)]


def test_what_is_no_sweep_is_refused(tmp_path):
    for text in ("{}", "[1]", "nothing", '{"format": "other"}'):
        (tmp_path / "s.json").write_text(text)
        with pytest.raises(SnapshotError, match=r"s\.json must be the results of a sweep"):
            Sweep.load(tmp_path / "s.json")
    with pytest.raises(ValueError, match="needs one width or more"):
        sweep(tmp_path, lambda path: 1.0, tmp_path / "new.json", ())


def scaled(path, factor, note=""):
    return factor * path.stat().st_size


class Metric:
    """A metric that is an object, at another place in memory in every process."""

    def __call__(self, path):
        return 1.0


@pytest.mark.parametrize(
    ("first", "again"),
    [
        (functools.partial(scaled, factor=2.0), functools.partial(scaled, factor=2.0)),
        (Metric(), Metric()),
        (Metric().__call__, Metric().__call__),
    ],
    ids=["partial", "object", "method"],
)
def test_a_sweep_goes_on_with_a_function_that_is_the_same_and_another_object(known_run, tmp_path, first, again):
    known_run.save_all(8)
    sweep(known_run.folder, first, tmp_path / "s.json", (0.05,))
    assert len(sweep(known_run.folder, again, tmp_path / "s.json", (0.05, 0.10)).points) == 2


@pytest.mark.parametrize("other", [functools.partial(scaled, factor=3.0), functools.partial(len)])
def test_a_partial_function_of_other_arguments_is_another_metric(known_run, tmp_path, other):
    known_run.save_all(8)
    sweep(known_run.folder, functools.partial(scaled, factor=2.0), tmp_path / "s.json", (0.05,))
    with pytest.raises(SnapshotError, match=r"another sweep .*metric"):
        sweep(known_run.folder, other, tmp_path / "s.json", (0.05,))


@pytest.mark.parametrize(
    ("one", "other"),
    [({"subfolder": "unet"}, {"subfolder": "vae"}), ({"steps": {"100": 1, "200": 2}}, {}), ({"run": "run-1"}, {})],
)
def test_other_options_of_the_inputs_make_another_sweep(known_run, tmp_path, one, other):
    folders = [tmp_path / "runs" / str(step) / name for step in (100, 200) for name in ("", "unet", "vae")]
    if "run" in one:
        inputs = known_run.save_all(8)
    else:
        inputs = tmp_path / "runs"
        for folder in folders:
            folder.mkdir(parents=True, exist_ok=True)
            save_file(known_run.model(int(folder.relative_to(inputs).parts[0])), folder / "model.safetensors")
    arguments = (inputs, lambda path: 1.0, tmp_path / "s.json", (0.2,))
    first = sweep(*arguments, options=InputOptions(**one), force=True)
    assert sweep(*arguments, options=InputOptions(**one), force=True) == first
    with pytest.raises(SnapshotError, match=f"another sweep .*{next(iter(one))}"):
        sweep(*arguments, options=InputOptions(**other), force=True)


def test_a_file_goes_as_soon_as_it_is_measured(known_run, tmp_path):
    known_run.save_all(8)
    seen = []
    sweep(
        known_run.folder,
        lambda path: seen.append(len(list(path.parent.iterdir()))) or 1.0,
        tmp_path / "s.json",
        (0.05, 0.07, 0.10),
    )
    assert seen == [3, 2, 1]


def test_widths_that_are_left_out_are_named(known_run, tmp_path):
    known_run.save_all(4, (0.10,))
    with pytest.warns(ReconstructionWarning, match=r"left out.* sigma_rel 0.005 \(.*%\).*force"):
        sweep(known_run.folder, lambda path: 1.0, tmp_path / "s.json", (0.005, 0.10))


@pytest.mark.parametrize(
    "change",
    [
        {"settings": None},
        {"direction": "up"},
        {"points": [{"sigma_rel": "wide", "value": 1.0, "predicted_error": 0.0}]},
        {"points": [{"sigma_rel": 0.1, "value": "good", "predicted_error": 0.0}]},
        {"points": 3},
    ],
)
def test_results_that_somebody_has_changed_are_refused_by_name(tmp_path, change):
    path = tmp_path / "s.json"
    path.write_text(json.dumps(sweep_of({0.05: 1.0}).to_dict() | change))
    with pytest.raises(SnapshotError, match=r"s\.json must be the results of a sweep"):
        Sweep.load(path)
