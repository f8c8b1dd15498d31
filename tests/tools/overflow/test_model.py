"""What the script's text says of its counters and averages; nothing where there is no text to read."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.overflow.model import Model, read


@pytest.mark.parametrize("text", [None, "if accelerator.sync_gradients\n", "\0"])
def test_a_script_that_cannot_be_read_has_an_empty_model(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "script.py"
    if text is not None:
        path.write_text(text)
    assert read(path) == Model()


def test_a_module_without_a_file_has_an_empty_model_and_global_step_is_followed_all_the_same() -> None:
    assert read(None) == Model()
    assert read(None).names(("state.step",)) == ("global_step", "state.step")


METHODS = """
class EarlyStop(Callback):
    def on_epoch_end(self, trainer):
        value = trainer.evaluate()


class Trainer:
    @torch.no_grad()
    def evaluate(self):
        self.model.train()

    def train(self):
        while self.state.global_step < self.args.max_steps and not self.should_stop:
            for batch in self.loader:
                if self.accelerator.sync_gradients and self.state.global_step >= self.args.max_steps:
                    break
"""


def test_a_script_is_read_in_which_the_reading_of_a_call_finds_code_that_was_not_seen_before(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(METHODS)
    assert read(path) == Model()
