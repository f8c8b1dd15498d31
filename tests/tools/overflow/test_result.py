"""The file of `--json` while runs go on, and where it cannot be written."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from tools.errors import CannotRun
from tools.overflow.launch import Finished, Job, Plan
from tools.overflow.result import JsonFile


def finished(story, returncode: int | None = 0) -> Finished:
    return Finished(Job("run", ("train.py",), Plan()), returncode, {0: story.timeline})


def test_a_file_that_cannot_be_written_is_told_and_nothing_is_left_beside_it(story, tmp_path: Path) -> None:
    target = tmp_path / "run.json"
    target.mkdir()
    with pytest.raises(CannotRun, match=r"--json must name a file that can be written, got .*run\.json"):
        JsonFile(target).write([finished(story().attempt())], 0)
    assert list(tmp_path.iterdir()) == [target]


def test_the_file_is_incomplete_until_the_end_and_whole_at_every_moment(story, tmp_path: Path, json_schema) -> None:
    target = tmp_path / "run.json"
    file = JsonFile(target)
    file.write([finished(story().attempt(losses=(math.inf,)), None)])
    content = json.loads(target.read_text())
    json_schema(content)
    assert (content["complete"], content["runs"][0]["attempts"][0]["losses"]) == (False, ["inf"])
    file.write([finished(story().attempt().attempt(), None)])  # at once after the first: left for later
    assert json.loads(target.read_text()) == content
    file.write([finished(story().attempt().attempt())], 0)
    content = json.loads(target.read_text())
    json_schema(content)
    assert (content["complete"], len(content["runs"][0]["attempts"])) == (True, 2)
