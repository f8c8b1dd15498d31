"""What is told of logs, checkpoints and evaluations: once each, and only of the training."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tools.overflow.launch import Job, Plan, run
from tools.overflow.verdicts import judge

pytestmark = [pytest.mark.processes, pytest.mark.xdist_group("overflow-workshop")]
HEAD = """
import torch
from accelerate import Accelerator
torch.manual_seed(0)
accelerator = Accelerator(cpu=True)
model = torch.nn.Linear(4, 1)
optimizer = accelerator.prepare(torch.optim.SGD(model.parameters(), lr=0.1))


def attempt():
    accelerator.backward(model(torch.randn(2, 4)).square().mean())
    optimizer.step()
    optimizer.zero_grad()

"""


def script(folder: Path, text: str) -> Path:
    path = folder / "script.py"
    path.write_text(HEAD + text)
    return path


def test_what_is_logged_saved_or_shown_before_training_is_not_told(workshop, tmp_path: Path) -> None:
    text = """
import tqdm
bar = tqdm.tqdm(total=2, disable=True)
accelerator.log({"loss": 1.0}, step=0)
accelerator.save_state("before")
bar.update(1)
attempt()
accelerator.log({"loss": 2.0}, step=1)
accelerator.save_state("behind")
bar.update(1)
"""
    ran = workshop.run(script(tmp_path, text), tmp_path)
    assert ran.exit_code == 0, ran.output
    assert [event["step"] for event in ran.timeline.of("log")] == [1]
    assert [event["name"] for event in ran.timeline.of("save")] == ["behind"]
    assert [event["position"] for event in ran.timeline.of("bar")] == [1]


def test_a_tracker_that_the_script_calls_itself_is_told(workshop, tmp_path: Path) -> None:
    text = """
from accelerate.tracking import TensorBoardTracker


class Lines:
    def add_scalar(self, name, value, global_step=None, **kwargs):
        print(name, float(value), global_step)

    def flush(self):
        pass


class Board(TensorBoardTracker):
    def __init__(self):
        self.writer = Lines()


board = Board()
board.log({"loss": torch.tensor(3.0)}, step=0)
for step in range(2):
    attempt()
    board.log({"loss": torch.tensor(float(step))}, step=step)
"""
    ran = workshop.run(script(tmp_path, text), tmp_path, Plan(at=(2,)))
    assert ran.exit_code == 0, ran.output
    assert ran.output == "loss 3.0 0\nloss 0.0 0\nloss 1.0 1\n"
    found = [(event["how"], event["step"], event["values"]) for event in ran.timeline.of("log")]
    assert found == [("Board.log", 0, {"loss": 0.0}), ("Board.log", 1, {"loss": 1.0})]
    assert [verdict.message for verdict in judge(ran.timeline) if verdict.is_defect] == [
        "tracker step 1 was logged on a skipped update at attempt 2"
    ]


def test_a_summary_writer_that_the_script_calls_itself_is_told(workshop, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="torch's SummaryWriter needs the package tensorboard")
    text = """
from torch.utils.tensorboard import SummaryWriter
writer = SummaryWriter("runs")
writer.add_scalar("loss", 5.0, 0)
attempt()
writer.add_scalar("loss", 2.0, 1)
writer.add_scalar("loss", torch.tensor(3.0), global_step=2)
writer.close()
"""
    ran = workshop.run(script(tmp_path, text), tmp_path)
    assert ran.exit_code == 0, ran.output
    found = [(event["how"], event["step"], event["values"]) for event in ran.timeline.of("log")]
    assert found == [
        ("SummaryWriter.add_scalar", 1, {"loss": 2.0}),
        ("SummaryWriter.add_scalar", 2, {"loss": 3.0}),
    ]


def test_files_that_torch_saves_are_told_by_their_names(tmp_path: Path) -> None:
    text = """
import io, pathlib
torch.save(model.state_dict(), "before.pt")
attempt()
torch.save(model.state_dict(), "model.pt")
torch.save(model.state_dict(), pathlib.Path("model.pth"))
torch.save(model.state_dict(), io.BytesIO())
"""
    with (tmp_path / "output").open("wb") as output:
        environment = {"OMP_NUM_THREADS": "1", "PWD": str(tmp_path)}
        begin = os.getcwd()
        os.chdir(tmp_path)
        try:
            done = run(
                Job("", (str(script(tmp_path, text)),), Plan(), environment=environment, output=output.fileno())
            )
        finally:
            os.chdir(begin)
    assert done.returncode == 0, (tmp_path / "output").read_text()
    saved = [(event["how"], event["name"]) for event in done.timeline.of("save")]
    assert saved == [("torch.save", "model.pt"), ("torch.save", "model.pth")]
    assert (tmp_path / "before.pt").is_file()


def test_the_trainer_tells_its_logs_checkpoints_and_evaluations_once_each(workshop, tmp_path: Path) -> None:
    text = """
from transformers import Trainer, TrainingArguments


class Regression(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def forward(self, x, y):
        return {"loss": (self.layer(x).squeeze(-1) - y).square().mean()}


rows = [{"x": torch.randn(4), "y": torch.randn(())} for _ in range(8)]
arguments = TrainingArguments(
    "out", max_steps=4, per_device_train_batch_size=2, logging_steps=2, eval_strategy="steps", eval_steps=2,
    save_steps=4, report_to=[], use_cpu=True, disable_tqdm=True, optim="adamw_torch", label_names=["y"],
)
trainer = Trainer(Regression(), arguments, train_dataset=rows, eval_dataset=rows[:2])
trainer.evaluate()
trainer.save_model("before")
trainer.train()
trainer.save_model("end")
trainer.evaluate()
"""
    ran = workshop.run(script(tmp_path, text), tmp_path)
    assert ran.exit_code == 0, ran.output
    assert ran.timeline.counters == {"global_step": 4}
    assert [event["step"] for event in ran.timeline.of("evaluate")] == [2, 4, 4]
    assert [event["name"] for event in ran.timeline.of("save")] == ["checkpoint-4", "end"]
    assert {event["how"] for event in ran.timeline.of("log")} == {"Trainer.log"}
    losses = [event["step"] for event in ran.timeline.of("log") if "loss" in event["values"]]
    assert losses == [2, 4]
