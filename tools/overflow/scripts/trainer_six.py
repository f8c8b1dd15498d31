"""The Trainer at its simplest: one epoch of six batches, six updates requested. It is run, never imported."""

from __future__ import annotations

import argparse
import tempfile
from typing import Any

import torch
from transformers import Trainer, TrainingArguments


class Regression(torch.nn.Module):
    """One linear layer; the loss is never near zero."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": (self.layer(x).squeeze(-1) - y).square().mean() + 1}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--optim", default="adamw_torch")
    parser.add_argument("--max_steps", type=int, default=6)
    parser.add_argument("--output_dir")
    parser.add_argument("--save", help="where to save the weights")
    options = parser.parse_args()
    torch.manual_seed(0)
    features, targets = torch.randn(12, 4), torch.randn(12)
    rows: Any = [{"x": features[i], "y": targets[i]} for i in range(12)]
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            options.output_dir or folder,
            max_steps=options.max_steps,
            per_device_train_batch_size=2,
            learning_rate=0.01,
            logging_steps=1,
            save_steps=2,
            save_strategy="steps",
            report_to=[],
            optim=options.optim,
            use_cpu=True,
            disable_tqdm=False,
        )
        model = Regression()
        trainer = Trainer(model, arguments, train_dataset=rows)
        result = trainer.train()
    if options.save:
        torch.save(model.state_dict(), options.save)
    print(f"global_step {result.global_step}")


if __name__ == "__main__":
    main()
