"""Which steps are attempts, and where an overflow goes in, on loops that are not the plain one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.overflow.launch import Plan
from tools.overflow.verdicts import judge

pytestmark = [pytest.mark.processes, pytest.mark.xdist_group("overflow-workshop")]
HEAD = """
import torch
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)


def loss():
    return model(torch.randn(2, 4)).square().mean()
"""


def outcomes(ran) -> str:
    return " ".join(attempt.outcome for attempt in ran.timeline.attempts)


def run(workshop, folder: Path, text: str, plan: Plan | None = None):
    path = folder / "script.py"
    path.write_text(HEAD + text)
    ran = workshop.run(path, folder, plan)
    assert ran.exit_code == 0, ran.output
    return ran


FLAKY = """
class Flaky(torch.optim.SGD):
    calls = 0

    def step(self, closure=None):
        self.calls += 1
        if self.calls == 2:
            raise RuntimeError("out of luck")
        return super().step(closure)


optimizer = Flaky(model.parameters(), lr=0.1)
BEGIN
for _ in range(4):
    BACKWARD
    try:
        STEP
    except RuntimeError as error:
        print(error)
    UPDATE
    optimizer.zero_grad()
"""
WAYS = {
    "of its own": ("", "loss().backward()", "optimizer.step()", ""),
    "by a scaler": (
        'scaler = torch.amp.GradScaler("cpu", init_scale=8.0)',
        "scaler.scale(loss()).backward()",
        "scaler.step(optimizer)",
        "scaler.update()",
    ),
    "by Accelerate": (
        "from accelerate import Accelerator\n"
        "accelerator = Accelerator(cpu=True)\n"
        "optimizer = accelerator.prepare(optimizer)",
        "accelerator.backward(loss())",
        "optimizer.step()",
        "",
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_step_that_raises_is_no_attempt_and_the_next_one_is(workshop, tmp_path: Path, way: str) -> None:
    text = FLAKY
    for word, replacement in zip(("BEGIN", "BACKWARD", "STEP", "UPDATE"), WAYS[way], strict=True):
        text = text.replace(word, replacement)
    ran = run(workshop, tmp_path, text)
    assert ran.output.count("out of luck") == 1
    assert [(attempt.number, attempt.outcome) for attempt in ran.timeline.attempts] == [
        (1, "applied"),
        (2, "applied"),
        (3, "applied"),
    ]


def test_a_prepared_step_that_no_backward_pass_came_before_is_no_attempt(workshop, tmp_path: Path) -> None:
    text = """
from accelerate import Accelerator
accelerator = Accelerator(cpu=True)
optimizer = accelerator.prepare(torch.optim.AdamW(model.parameters()))
optimizer.step()
accelerator.backward(loss())
optimizer.step()
"""
    assert [attempt.number for attempt in run(workshop, tmp_path, text).timeline.attempts] == [1]


def test_clipping_twice_unscales_once(workshop, tmp_path: Path) -> None:
    text = """
from accelerate import Accelerator
accelerator = Accelerator(cpu=True)
optimizer = accelerator.prepare(torch.optim.SGD(model.parameters(), lr=0.1))
norms = []
for _ in range(3):
    accelerator.backward(loss())
    norms += [float(accelerator.clip_grad_norm_(model.parameters(), 1e6)) for _ in range(2)]
    optimizer.step()
    optimizer.zero_grad()
print(norms[:2])
assert norms[0] == norms[1] < 100 and norms[2] == norms[3] < 100
"""
    ran = run(workshop, tmp_path, text, Plan(at=(3,)))
    assert ran.timeline.optimizers[1].scaler == "installed"
    assert outcomes(ran) == "applied applied skipped"


def test_an_inner_backward_pass_of_checkpointing_belongs_to_the_outer_one(workshop, tmp_path: Path) -> None:
    text = """
from torch.utils.checkpoint import checkpoint
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    inputs = torch.randn(2, 4, requires_grad=True)
    checkpoint(model, inputs, use_reentrant=True).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
    ran = run(workshop, tmp_path, text)
    assert [event["backwards"] for event in ran.timeline.of("attempt")] == [1, 1, 1]
    assert [len(attempt.losses) for attempt in ran.timeline.attempts] == [1, 1, 1]


def test_a_backward_pass_that_begins_at_an_edge_of_the_graph_has_no_loss(workshop, tmp_path: Path) -> None:
    text = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    edge = torch.autograd.graph.get_gradient_edge(loss())
    torch.autograd.backward([edge], [torch.ones(())])
    optimizer.step()
    optimizer.zero_grad()
"""
    ran = run(workshop, tmp_path, text)
    assert outcomes(ran) == "applied applied"
    assert [attempt.losses for attempt in ran.timeline.attempts] == [(), ()]


def test_losses_that_are_scaled_together_are_told_without_the_scale(workshop, tmp_path: Path) -> None:
    text = """
scaler = torch.amp.GradScaler("cpu", init_scale=4096.0)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
losses = [loss(), loss()]
print(losses[0].item())
torch.autograd.backward(scaler.scale(losses))
scaler.step(optimizer)
scaler.update()
"""
    ran = run(workshop, tmp_path, text)
    assert ran.timeline.attempts[0].losses == pytest.approx((float(ran.output),))


def test_an_overflow_waits_for_a_backward_pass_that_reaches_the_optimizer(workshop, tmp_path: Path) -> None:
    text = """
scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
probe = torch.nn.Parameter(torch.ones(1))
for _ in range(3):
    (probe * 2).sum().backward()
    scaler.scale(loss()).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    assert probe.grad.isfinite().all()
"""
    ran = run(workshop, tmp_path, text, Plan(at=(2,)))
    assert outcomes(ran) == "applied skipped applied"
    assert [attempt.injected for attempt in ran.timeline.attempts] == [False, True, False]


TWO = """
import os
os.environ["WORLD_SIZE"] = "2"
scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
other = torch.nn.Linear(4, 1)
optimizers = [torch.optim.SGD(part.parameters(), lr=0.1) for part in PARTS]
for _ in range(3):
    scaler.scale(loss() + other(torch.randn(2, 4)).square().mean()).backward()
    for optimizer in optimizers:
        scaler.step(optimizer)
    scaler.update()
    for optimizer in optimizers:
        optimizer.zero_grad()
"""


def test_the_overflow_of_another_rank_reaches_a_single_optimizer_by_the_reduction_alone(
    workshop, tmp_path: Path
) -> None:
    ran = run(workshop, tmp_path, TWO.replace("PARTS", "[model]"), Plan(at=(2,), rank=1))
    assert outcomes(ran) == "applied applied applied"
    assert ran.timeline.notes == []


def test_with_several_optimizers_every_rank_gets_the_overflow_and_a_note_says_so(workshop, tmp_path: Path) -> None:
    ran = run(workshop, tmp_path, TWO.replace("PARTS", "[model, other]"), Plan(at=(2,), rank=1))
    assert [a.number for a in ran.timeline.attempts if not a.applied] == [2, 2]
    assert any("so every rank got it" in text for text in ran.timeline.notes)


def test_a_sharded_scaler_gets_the_overflow_before_it_unscales(workshop, tmp_path: Path) -> None:
    text = """
import torch.distributed as dist
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
scaler = ShardedGradScaler(device="cpu", init_scale=8.0)
critic = torch.nn.Linear(4, 1)
optimizers = [torch.optim.SGD(part.parameters(), lr=0.1) for part in (model, critic)]
for _ in range(3):
    scaler.scale(loss() + critic(torch.randn(2, 4)).square().mean()).backward()
    for optimizer in optimizers:
        scaler.unscale_(optimizer)
    for optimizer in optimizers:
        scaler.step(optimizer)
    scaler.update()
    for optimizer in optimizers:
        optimizer.zero_grad()
"""
    ran = run(workshop, tmp_path, text, Plan(at=(2,), optimizer="1"))
    assert [(a.optimizer, a.number) for a in ran.timeline.attempts if a.injected] == [(1, 2)]
    assert [(a.optimizer, a.number) for a in ran.timeline.attempts if not a.applied] == [(1, 2)]


def test_variables_of_a_function_that_calls_locals_are_left_unread_and_a_note_says_so(
    workshop, tmp_path: Path
) -> None:
    text = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train():
    global_step = 0
    for _ in range(2):
        loss().backward()
        optimizer.step()
        global_step += 1
    print(sorted(locals()))


train()
"""
    ran = run(workshop, tmp_path, text)
    assert ran.output == "['_', 'global_step']\n"
    assert [verdict.message for verdict in judge(ran.timeline) if verdict.is_defect] == []
    said = "variables of train were not read: it calls locals()"
    assert any(said in note for note in ran.timeline.notes) is bool(not ran.timeline.counters)
