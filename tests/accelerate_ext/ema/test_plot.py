"""Figures show the numbers that they should, and say what is missing where they cannot be made."""

from __future__ import annotations

import errno
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from accelerate_ext.ema import plot
from accelerate_ext.ema.reconstruct import reconstruct
from accelerate_ext.ema.result import ReconstructionWarning
from accelerate_ext.ema.sweep import Point, Sweep


def lines(axes):
    return {line.get_label(): line.get_xydata() for line in axes.get_lines()}


def test_profiles_are_drawn_with_the_area_of_one():
    (axes,) = plot.plot_profiles([0.05, 0.10, 0.2]).axes
    assert len(lines(axes)) == 3
    for data in lines(axes).values():
        area = ((data[1:, 1] + data[:-1, 1]) / 2 * (data[1:, 0] - data[:-1, 0])).sum()
        assert area == pytest.approx(1, rel=1e-3)


def test_a_fit_is_drawn_against_what_was_asked_for(known_run):
    result = reconstruct(known_run.save_all(16), [0.075, 0.15], dry_run=True)
    upper, lower = plot.plot_fit(result).axes
    assert len(upper.get_lines()) == 4 and len(lower.get_lines()) == 2
    for line in lower.get_lines():
        difference = line.get_ydata()
        assert 1e-6 < abs(difference).max() < 0.02
        assert difference[-1] == pytest.approx(0, abs=1e-9)


def test_plain_checkpoints_are_drawn_as_steps(known_run, tmp_path):
    for t in (400, 800, 1200, 1600):
        torch.save(known_run.model(t), tmp_path / f"model_{t}.pt")
    with pytest.warns(ReconstructionWarning):
        result = reconstruct(sorted(tmp_path.glob("*.pt")), 0.2, dry_run=True)
    upper, _ = plot.plot_fit(result).axes
    built = upper.get_lines()[0].get_ydata()
    assert len(set(built.round(9))) == 5


def test_errors_fall_with_the_number_of_snapshots():
    (axes,) = plot.plot_errors((0.05, 0.10)).axes
    drawn = lines(axes)
    assert set(drawn) == {"0.02", "0.075", "0.15", "0.2", "0.25"}
    assert all((data[1:, 1] < data[:-1, 1]).all() for data in drawn.values())


def sweep_with_optimum(at: float, label: str) -> Sweep:
    widths = (0.05, 0.075, 0.1, 0.13, 0.16, 0.2)
    return Sweep({}, tuple(Point(w, 2 + math.log(w / at) ** 2, 0.0) for w in widths), label)


def test_sweeps_of_several_learning_rates_are_drawn_with_their_best_widths():
    (axes,) = plot.plot_sweeps([sweep_with_optimum(0.08, "lr 1e-3"), sweep_with_optimum(0.14, "lr 1e-4")], "FID").axes
    assert axes.get_ylabel() == "FID"
    assert {"lr 1e-3", "lr 1e-4"} <= set(lines(axes))
    stars = [tuple(line.get_xydata()[0]) for line in axes.get_lines() if line.get_marker() == "*"]
    assert stars == [pytest.approx((0.08, 2)), pytest.approx((0.14, 2))]
    assert [text.get_text() for text in axes.texts] == ["0.080", "0.140"]


def test_the_title_speaks_of_a_parabola_only_where_there_is_one():
    inside = sweep_with_optimum(0.1, "inside")
    beyond = Sweep({}, tuple(Point(width, -width, 0.0) for width in (0.05, 0.1, 0.2)), "beyond")
    titles = [
        plot.plot_sweeps(sweeps).axes[0].get_title() for sweeps in ([inside], [beyond], [inside, beyond], [inside] * 2)
    ]
    assert titles[0] == titles[3] == "Star: the best width, by a parabola through the points around it"
    assert titles[1].startswith("Star: the best width measured;") and "may lie outside" in titles[1]
    assert "by a parabola where" in titles[2] and "may lie outside" in titles[2]


def test_nothing_to_plot_is_said():
    with pytest.raises(ValueError, match="nothing to plot"):
        plot.plot_sweeps([Sweep({}, (Point(0.1, math.nan, 0.0),))])


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_the_format_follows_the_name(tmp_path, ending):
    path = plot.save(plot.plot_profiles([0.1]), tmp_path / "new" / f"profile.{ending}")
    assert path.stat().st_size > 1000
    with pytest.raises(ValueError, match=r"profile\.txt must end in one of .*png"):
        plot.save(plot.plot_profiles([0.1]), tmp_path / "profile.txt")


def test_a_figure_that_cannot_be_written_names_its_file_and_leaves_nothing(tmp_path, monkeypatch):
    figure = plot.plot_profiles([0.1])

    def fill_the_disk(file, **options):
        Path(file).write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(figure, "savefig", fill_the_disk)
    with pytest.raises(OSError, match=r"No space left on device: '.*profile\.png'"):
        plot.save(figure, tmp_path / "profile.png")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.processes
@pytest.mark.xdist_group("ema-cli")
def test_without_matplotlib_everything_else_works_and_plots_say_what_to_install():
    code = (
        "import sys; sys.modules['matplotlib'] = None\n"
        "from accelerate_ext.ema import plot\n"
        "try: plot.plot_profiles([0.1])\n"
        "except ImportError as error: print(error)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 'pip install "accelerate-ext[plot]"' in ran.stdout and 'pip install ".[plot]"' in ran.stdout
