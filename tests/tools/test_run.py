"""The main command, for real: releases from the package index, and the Trainer on unpatched and patched copies."""

from __future__ import annotations

import re
import types
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from tools import run as main_command
from tools.cli import main
from tools.errors import Unavailable
from tools.patch import Series
from tools.site import Outcome, Site
from tools.trees import Overlay
from tools.upstreams import accelerate

README = Path(__file__).resolve().parents[2] / "README.md"


@pytest.fixture
def no_diffusers(monkeypatch, tmp_path):
    """A machine on which git reaches nothing."""
    monkeypatch.delenv("DIFFUSERS_CHECKOUT", raising=False)
    monkeypatch.setattr("tools.generate.cache_folder", lambda: tmp_path / "cache")
    for name, value in {"COUNT": "1", "KEY_0": "http.proxy", "VALUE_0": "http://127.0.0.1:9"}.items():
        monkeypatch.setenv(f"GIT_CONFIG_{name}", value)


@pytest.mark.network
@pytest.mark.processes
@pytest.mark.xdist_group("run")
def test_one_command_generates_proves_and_shows_the_difference(no_diffusers, tmp_path):
    result = CliRunner().invoke(main, ["run", "--out", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    text = result.stdout
    lines = [line.strip().split("  ")[0] for line in text.splitlines()]
    first = next(
        number for number, line in enumerate(lines) if re.fullmatch(r"accelerate \S+, series accelerate:", line)
    )
    assert lines[first + 1 : first + 5] == ["source", "found", "generated", "applies"]
    assert re.search(r"^transformers \S+, series transformers:\n    source     the package index, ", text, re.M)
    assert text.count("    applies    as mails and without context, both to tree ") == 3
    assert "diffusers: not here (diffusers needs a checkout" in text
    assert re.search(r"py_dreambooth 0\.2\.8, series scripts:\n.*\n.*\n    generated  3 patches of 3 files", text)
    rows = {cells[0].strip(): [cell.strip() for cell in cells[1:]] for cells in _rows(text)}
    for optimizer in ("adamw_torch", "adamw_torch_fused"):
        # attempts, applied updates, EMA calls, final global_step, exit code
        assert rows[f"unpatched release, {optimizer}"] == ["6", "5", "-", "6", "0"]
        assert rows[f"patched release, {optimizer}"] == ["7", "6", "-", "6", "0"]
    assert len(list((tmp_path / "out").rglob("*.patch"))) == 11
    (shown,) = re.findall(r"^```text\n(.*?)^```$", README.read_text(encoding="utf-8"), re.M | re.S)
    assert text.endswith(shown), "the README shows the end of another run"


def _rows(text: str) -> list[list[str]]:
    return [line.strip("| ").split("|") for line in text.splitlines() if line.startswith("| ")]


@pytest.fixture
def newer(monkeypatch, tmp_path):
    """The newest release is one that the catalogue does not know."""
    row = main_command.catalog.find("accelerate")

    class Newer:
        base, date, is_exact = "99.0.0", "Mon, 05 May 2025 00:00:00 +0000", False

    @contextmanager
    def newest(row, say):
        yield Newer()

    monkeypatch.setattr(main_command, "_newest_release", newest)
    return row


@pytest.mark.network
def test_a_newer_release_of_another_shape_falls_back_to_the_pinned_one(newer, monkeypatch, tmp_path):
    refused = Series("accelerate", (), "", {"a.py": (Site(1, 1, "x", "x", Outcome.REFUSED, "another shape"),)})
    real = accelerate.SERIES["accelerate"]
    monkeypatch.setitem(accelerate.SERIES, "accelerate", lambda tree: real(tree) if tree.is_exact else refused)
    said: list[str] = []
    bar = types.SimpleNamespace(set_postfix_str=lambda text: None, update=lambda: None)
    made = main_command._newest(newer, tmp_path, said.append, bar)
    assert made.tree.base == newer.base
    assert said[0] == "accelerate 99.0.0: refused, because it has another shape; falling back to 1.15.0"
    assert "a.py:1:1: x: refused x: another shape" in said[1]


@pytest.mark.network
def test_a_newer_release_of_the_same_shape_is_patched_as_it_is(monkeypatch, tmp_path):
    row = main_command.catalog.find("accelerate")
    said: list[str] = []
    bar = types.SimpleNamespace(set_postfix_str=lambda text: None, update=lambda: None)
    with main_command.open_source(row) as pinned:
        newer = Overlay(pinned, {})
        newer.base, newer.is_exact = "99.0.0", False

        @contextmanager
        def newest(row, say):
            yield newer

        monkeypatch.setattr(main_command, "_newest_release", newest)
        made = main_command._newest(row, tmp_path, said.append, bar)
    assert made.tree.base == "99.0.0"
    assert said[0] == "accelerate 99.0.0, not the pinned base, series accelerate:"
    assert said[1] == "    source     the package index, a release whose sha256 is not recorded here"
    assert len(list((tmp_path / "accelerate" / "99.0.0").rglob("*.patch"))) == len(made.series.patches) == 1


@pytest.mark.network
def test_without_the_package_index_the_pinned_release_of_the_cache_is_taken(monkeypatch):
    row = main_command.catalog.find("accelerate")
    real = main_command.download

    def download(row, version):
        if version is None:
            raise Unavailable("the index does not answer")
        return real(row, version)

    monkeypatch.setattr(main_command, "download", download)
    said: list[str] = []
    with main_command._newest_release(row, said.append) as tree:
        assert (tree.base, tree.is_exact) == (row.base, True)
    assert said == [f"accelerate: the newest release is out of reach, taking {row.base} (the index does not answer)"]


def test_a_checkout_is_named_as_the_source(sample, tmp_path):
    repo, row = sample
    said: list[str] = []
    bar = types.SimpleNamespace(update=lambda: None)
    with main_command.GitTree(repo.root, row.base, row.base) as tree:
        main_command._finish(main_command.generate(row, tree), tmp_path / "out", said.append, bar)
    assert said[1] == f"    source     {repo.root}, read at the commit"


def test_without_torch_the_trainer_runs_are_left_out(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    said: list[str] = []
    assert main_command._trainer([], said.append, None)
    assert said == ["the Trainer runs are left out: this Python has no torch"]
