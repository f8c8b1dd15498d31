"""A Trainer run of one epoch and six batches that asks for six steps. It runs in a process of its own.

Usage: trainer_six_steps.py OPTIMIZER   (a value of TrainingArguments.optim)
"""

import sys
import tempfile

import torch
from transformers import Trainer, TrainingArguments


class Line(torch.nn.Module):
    """One weight and one bias."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        """The loss, as the Trainer wants it."""
        return {"loss": torch.nn.functional.mse_loss(self.layer(x), y)}


torch.manual_seed(0)
points = torch.randn(12, 1)
rows = [{"x": point, "y": 2 * point + 1} for point in points]
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder,
        max_steps=6,
        per_device_train_batch_size=2,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        optim=sys.argv[1],
        use_cpu=True,
    )
    Trainer(Line(), arguments, train_dataset=rows).train()
