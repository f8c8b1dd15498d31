"""The Trainer at its simplest: one epoch of six batches, six updates requested."""

import argparse
import tempfile

import torch
from transformers import Trainer, TrainingArguments

parser = argparse.ArgumentParser()
parser.add_argument("--optim", default="adamw_torch")
parser.add_argument("--max_steps", type=int, default=6)
parser.add_argument("--output_dir")
options = parser.parse_args()


class Regression(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def forward(self, x, y):
        return {"loss": (self.layer(x).squeeze(-1) - y).square().mean() + 1}


torch.manual_seed(0)
features, targets = torch.randn(12, 4), torch.randn(12)
rows = [{"x": features[i], "y": targets[i]} for i in range(12)]
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
    )
    trainer = Trainer(Regression(), arguments, train_dataset=rows)
    result = trainer.train()
print(f"global_step {result.global_step}")
