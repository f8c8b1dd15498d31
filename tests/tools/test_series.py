"""A series' folder: its files, how they get there, and what may not stand in them."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import jsonschema
import pytest
from click.testing import CliRunner

from tools import catalog, report, series
from tools.checkout import GitTree
from tools.cli import main
from tools.errors import CannotRun
from tools.generate import export, generate, open_source


@pytest.fixture
def files(sample) -> dict[str, bytes]:
    repo, row = sample
    with GitTree(repo.root, "HEAD", row.base) as tree:
        return generate(row, tree, "first").rendered(context=0)


def test_the_folder_holds_order_patches_report_and_notes(files):
    assert list(files) == ["series", "0001-one.patch", "0002-two.patch", "report.json", "NOTES.md"]
    assert files["series"] == b"0001-one.patch\n0002-two.patch\n"
    document = json.loads(files["report.json"])
    schema = json.loads((Path(report.__file__).parent / "schemas" / "report.schema.json").read_text())
    jsonschema.validate(document, schema)
    assert document["series"] == "first"
    assert document["totals"]["rewritten"] == 2


def test_notes_name_the_places_and_quote_no_line_of_the_upstream(files):
    notes = files["NOTES.md"].decode()
    assert "Facts about first." in notes
    assert "| `scripts/one.py` | 20 | 20 | text | `replaced` |" in notes
    for line in series.removed_lines(files):
        assert line not in notes
        assert line not in files["report.json"].decode()
    assert series.removed_lines(files) == {"line 20", "beta"}


def generating(notes: bytes) -> list[str]:
    """The command by which NOTES.md says that its series is made, without the program's name."""
    (line,) = re.findall(r"^    python -m tools (generate .*)$", notes.decode(), re.MULTILINE)
    return line.split()


@pytest.mark.parametrize("is_pinned", [True, False])
@pytest.mark.parametrize("distribution", ["", "sample"])
def test_the_command_in_the_notes_makes_the_same_series(sample, tmp_path, monkeypatch, distribution, is_pinned):
    repo, row = sample
    row = replace(row, distribution=distribution)  # a release has no commit that could be its base
    if not is_pinned:
        repo.commit({"other.txt": b"new"})
    monkeypatch.setattr(catalog, "find", lambda name: row)
    with open_source(row, repo.root, "HEAD") as tree:
        folder = export(generate(row, tree, "first"), tmp_path / "first")
    words = generating((folder / "NOTES.md").read_bytes())
    command = [str(repo.root) if word == "CHECKOUT" else word for word in words]
    result = CliRunner().invoke(main, [*command, "--out", str(tmp_path / "second")])
    assert result.exit_code == 0, result.output
    assert series.read(Path(result.stdout.splitlines()[-1])) == series.read(folder)


def test_the_notes_of_a_release_name_no_checkout(sample):
    repo, row = sample
    with GitTree(repo.root, "HEAD", row.base) as tree:
        made = generate(row, tree, "first")
        released = SimpleNamespace(base="1.2", is_exact=True, date=tree.date, read=tree.read, mode=tree.mode)
        row = replace(row, distribution="sample", base="1.2")
        notes = series.render(row, released, made.series, context=0)["NOTES.md"]
    assert generating(notes) == ["generate", "sample", "--series", "first"]


def test_a_sound_series_has_no_faults(files):
    assert series.lint(files, context=0) == []


def test_every_fault_is_named(files):
    broken = dict(files)
    broken["0002-two.patch"] = files["0002-two.patch"].replace(b"Base-Commit", b"Based-On")
    broken["0003-more.patch"] = files["0001-one.patch"]
    broken["series"] += b"0004-gone.patch\n"
    del broken["NOTES.md"]
    assert series.lint(broken, context=0) == [
        "0004-gone.patch is in the order file and not there",
        "0003-more.patch is not in the order file",
        "NOTES.md is missing",
        "0002-two.patch:1: the mail lacks `Base-Commit: ...`",
    ]


def test_a_line_of_context_is_a_fault_of_the_committed_form_only(sample):
    repo, row = sample
    with GitTree(repo.root, "HEAD", row.base) as tree:
        mails = generate(row, tree, "first").rendered(context=3)
    assert series.lint(mails, context=3) == []
    assert len([fault for fault in series.lint(mails, context=0) if "unchanged line" in fault]) == 8


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        (b" @@\n", b" @@ def secret():\n", "a hunk's line must hold its ranges"),
        (b"index ", b"index 123..", "full blob ids"),
        (b"@@ -", b"@@@ -", "a hunk's line must hold its ranges"),
    ],
)
def test_the_form_of_a_patch_is_held(files, old, new, fault):
    broken = files | {"0001-one.patch": files["0001-one.patch"].replace(old, new, 1)}
    assert any(fault in line for line in series.lint(broken, context=0))


def test_an_order_file_is_needed(files):
    with pytest.raises(CannotRun, match="order file"):
        series.order({})


class TestWrite:
    def test_an_older_series_is_replaced_whole(self, tmp_path, files):
        folder = tmp_path / "a" / "b"
        series.write(folder, files | {"0009-old.patch": b"x"})
        series.write(folder, files)
        assert series.read(folder) == files
        assert [path.name for path in folder.parent.iterdir()] == ["b"]

    def test_a_folder_of_something_else_is_left_alone(self, tmp_path, files):
        (tmp_path / "mine").mkdir()
        (tmp_path / "mine" / "thesis.tex").write_text("x")
        with pytest.raises(CannotRun, match="holds something else"):
            series.write(tmp_path / "mine", files)
        assert os.listdir(tmp_path / "mine") == ["thesis.tex"]

    def test_a_place_that_cannot_be_written_is_said_to_be_so_and_stays(self, tmp_path, files):
        (tmp_path / "file").write_text("x")
        with pytest.raises(CannotRun, match="could not be written"):
            series.write(tmp_path / "file" / "sub", files)
        assert (tmp_path / "file").read_text() == "x"

    def test_what_fails_on_the_way_leaves_the_older_series(self, tmp_path, files):
        series.write(tmp_path / "out" / "s", files)
        with pytest.raises(CannotRun, match="could not be written"):
            series.write(tmp_path / "out" / "s", files | {"no/such/folder": b"x"})
        assert series.read(tmp_path / "out" / "s") == files
        assert os.listdir(tmp_path / "out") == ["s"]

    def test_the_older_series_comes_back_if_the_new_one_cannot_take_its_place(self, tmp_path, files, monkeypatch):
        series.write(tmp_path / "out" / "s", files)
        real, calls = os.rename, []

        def failing(source, target):
            calls.append(target)
            if len(calls) == 2:
                raise OSError(28, "No space left on device")
            real(source, target)

        monkeypatch.setattr(os, "rename", failing)
        with pytest.raises(CannotRun, match="No space left"):
            series.write(tmp_path / "out" / "s", files | {"NOTES.md": b"new"})
        assert series.read(tmp_path / "out" / "s") == files
        assert os.listdir(tmp_path / "out") == ["s"]

    def test_a_first_series_that_cannot_take_its_place_leaves_nothing(self, tmp_path, files, monkeypatch):
        def failing(source, target):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "rename", failing)
        with pytest.raises(CannotRun, match="No space left"):
            series.write(tmp_path / "out" / "s", files)
        assert os.listdir(tmp_path / "out") == []

    def test_a_missing_series_is_said_to_be_so(self, tmp_path):
        with pytest.raises(CannotRun, match="must be the folder of a series"):
            series.read(tmp_path / "none")


@pytest.mark.parametrize("name", ["", "a b", "../x", "a/b", "-x"])
def test_a_patch_name_must_make_a_plain_file_name(name):
    with pytest.raises(ValueError, match="a patch's name"):
        series.file_name(1, name)
