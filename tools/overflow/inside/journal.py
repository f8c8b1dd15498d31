"""What is written down, in its order: events, the counters that moved before them, and notes for the report."""

from __future__ import annotations

from typing import Any

from .counters import Counters
from .events import Recorder, scalar


class Journal:
    """Every event tells how many attempts came before it (`done`)."""

    def __init__(self, recorder: Recorder, counters: Counters) -> None:
        self.recorder = recorder
        self.counters = counters
        self.done = 0
        self._noted: dict[str, bool] = {}  # text -> written

    def tell(self, event: str, /, may_search: bool = False, **fields: Any) -> None:
        """Write an event, and before it every counter that has moved since the last one."""
        self.sample(may_search)
        self.recorder.write(event, after=self.done, **fields)

    def sample(self, may_search: bool = False) -> None:
        """Write every counter that has moved since the last event."""
        for counter in self.counters.moved(may_search):
            fields = {"name": counter.name, "value": counter.value, "where": counter.where}
            self.recorder.write("counter", after=self.done, **fields)

    def note(self, text: str) -> None:
        """Say once what a reader of the report must know; kept back until the process has something else to tell."""
        self._noted.setdefault(text, False)
        if self.recorder.started:
            self.write_notes()

    def write_notes(self) -> None:
        """Write the notes that were kept back."""
        for text, is_written in self._noted.items():
            if not is_written:
                self._noted[text] = True
                self.recorder.write("note", text=text)

    def tell_log(self, how: str, values: dict[str, Any], step: Any) -> None:
        """One call of a logger: its step, and the values that are numbers."""
        numbers = {str(name): number for name, value in values.items() if (number := scalar(value)) is not None}
        self.tell("log", how=how, step=None if step is None else scalar(step), values=dict(list(numbers.items())[:50]))
