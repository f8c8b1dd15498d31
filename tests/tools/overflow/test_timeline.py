"""Following the files of a run while they grow."""

from __future__ import annotations

import json
from pathlib import Path

from tools.overflow.inside.events import Recorder
from tools.overflow.timeline import Reader


def lines(path: Path, attempts: int) -> None:
    start = {"event": "start", "time": 0.0, "rank": 0, "python": "3", "versions": {}}
    attempt = {"event": "attempt", "time": 0.0, "after": 1, "number": 1, "optimizer": 1, "outcome": "applied"}
    attempt |= {"injected": False, "losses": ["nan", 1.0]}
    path.write_text("".join(json.dumps(event) + "\n" for event in [start, *[attempt] * attempts]))


def test_of_several_processes_of_a_rank_the_one_with_the_most_attempts_counts(tmp_path: Path) -> None:
    for number, attempts in enumerate([1, 3, 0]):
        lines(tmp_path / f"0-{number}.jsonl", attempts)
    assert len(Reader(tmp_path).read()[0].attempts) == 3


def test_a_line_that_is_being_written_waits_for_its_end(tmp_path: Path) -> None:
    path, reader = tmp_path / "0-1.jsonl", Reader(tmp_path)
    lines(path, 2)
    whole = path.read_text()
    path.write_text(whole[:-10])
    assert len(reader.read()[0].attempts) == 1
    path.write_text(whole)
    assert len(reader.read()[0].attempts) == 2
    assert len(reader.read()[0].attempts) == 2


def test_what_the_recorder_writes_is_read(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("RANK", "3")
    recorder = Recorder(str(tmp_path))
    assert list(tmp_path.iterdir()) == []
    recorder.write("note", text="seen")
    assert Reader(tmp_path).read()[3].notes == ["seen"]
