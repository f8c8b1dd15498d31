"""A training loop to put statements into, and what a rewrite makes of them."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

import pytest

from tools.rewrite import Options, Rewrite, rewrite

HEAD = """\
import torch
from accelerate import Accelerator


def main(loader, args, generator_step):
    accelerator = Accelerator(ACCUMULATION)
    model, other = Model(), Model()
    optimizer, other_optimizer = torch.optim.AdamW(model.parameters()), torch.optim.AdamW(other.parameters())
    scheduler = get_scheduler("linear", optimizer)
    model, PREPARED = accelerator.prepare(model, PREPARED)
    ema, progress_bar, window, global_step = EMAModel(model), tqdm(), 0.0, 0
    for step, batch in enumerate(loader):
"""
STEP = """\
with accelerator.accumulate(model):
    loss = model(batch)
    window += loss
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
"""


@dataclass(frozen=True)
class Loop:
    """Statements of a loop body with the step in front, before and after a rewrite."""

    accumulation: str = "gradient_accumulation_steps=args.steps"
    prepared: str = "optimizer"
    step: str = STEP

    def source(self, body: str) -> str:
        head = HEAD.replace("ACCUMULATION", self.accumulation).replace("PREPARED", self.prepared)
        return head + textwrap.indent(self.step + textwrap.dedent(body).strip("\n") + "\n", " " * 8)

    def rewrite(self, body: str, **options: object) -> Rewrite:
        data = self.source(body).encode()
        result = rewrite(data, Options(**options))  # type: ignore[arg-type]
        compile(result.after, "loop", "exec")
        assert rewrite(result.after, Options(**options)).after == result.after  # type: ignore[arg-type]
        return result

    def becomes(self, body: str, wanted: str, **options: object) -> bool:
        """Whether the rewrite gives exactly the wanted text."""
        assert self.rewrite(body, **options).after.decode() == self.source(wanted)
        return True

    def stays(self, body: str, **options: object) -> set[str]:
        """The codes of a rewrite that must change nothing."""
        result = self.rewrite(body, **options)
        assert result.after == result.before
        return {site.code for site in result.sites}

    def codes(self, body: str, **options: object) -> set[str]:
        return {site.code for site in self.rewrite(body, **options).sites}


@pytest.fixture
def loop() -> Loop:
    """A loop that accumulates, one prepared optimizer."""
    return Loop()


@pytest.fixture
def make_loop():
    return Loop
