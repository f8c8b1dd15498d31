"""What the observer sees of real loops, on the real torch and accelerate."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.overflow.launch import Plan
from tools.overflow.verdicts import judge

pytestmark = [pytest.mark.processes, pytest.mark.xdist_group("overflow-workshop")]
LOOP = Path(__file__).parent / "scripts" / "loop.py"
ROOT = Path(__file__).resolve().parents[3]


def outcomes(ran) -> str:
    return " ".join(attempt.outcome for attempt in ran.timeline.attempts)


def defects(ran) -> list[str]:
    return [verdict.message for verdict in judge(ran.timeline) if verdict.is_defect]


def notes(ran) -> list[str]:
    return [verdict.message for verdict in judge(ran.timeline) if not verdict.is_defect] + ran.timeline.notes


def script(folder: Path, text: str) -> Path:
    path = folder / "script.py"
    path.write_text(text)
    return path


def test_an_overflow_is_skipped_and_the_weights_stay(workshop, tmp_path: Path) -> None:
    ran = workshop.run(LOOP, tmp_path, Plan(at=(2,)), "--steps", "3")
    assert ran.exit_code == 0, ran.output
    assert outcomes(ran) == "applied skipped applied"
    first, second, third = ran.timeline.attempts
    assert (first.weights_changed, second.weights_changed, third.weights_changed) == (True, False, True)
    assert (second.injected, second.ran, second.said_skipped) == (True, False, True)
    assert second.scale == (65536.0, 32768.0)
    assert ran.timeline.optimizers[1].scaler == "installed"


def test_a_finite_run_gets_no_scaler(workshop, tmp_path: Path) -> None:
    ran = workshop.run(LOOP, tmp_path, Plan(), "--steps", "3")
    assert outcomes(ran) == "applied applied applied"
    assert ran.timeline.optimizers[1].scaler is None
    assert defects(ran) == []


def test_a_fused_optimizer_runs_and_drops_the_update_and_accelerate_does_not_see_it(workshop, tmp_path: Path) -> None:
    ran = workshop.run(LOOP, tmp_path, Plan(at=(2,)), "--steps", "3", "--fused")
    second = ran.timeline.attempts[1]
    assert (second.outcome, second.ran, second.said_skipped) == ("skipped", True, False)
    assert "scheduler stepped on a skipped update at attempt 2" in defects(ran)
    assert any("huggingface/accelerate#4242" in text for text in notes(ran))


def test_an_update_that_is_too_small_to_move_a_weight_is_applied_all_the_same(workshop, tmp_path: Path) -> None:
    ran = workshop.run(LOOP, tmp_path, Plan(at=(2,)), "--steps", "3", "--lr", "0")
    assert outcomes(ran) == "applied skipped applied"
    assert ran.timeline.attempts[0].weights_changed is False


def test_the_overflow_is_put_into_the_last_micro_batch_of_its_window(workshop, tmp_path: Path) -> None:
    ran = workshop.run(LOOP, tmp_path, Plan(at=(2,)), "--steps", "3", "--accumulate", "2")
    assert outcomes(ran) == "applied skipped applied"
    assert [len(attempt.losses) for attempt in ran.timeline.attempts] == [2, 2, 2]


def test_a_guard_that_drops_the_window_itself_is_seen_and_gets_no_second_overflow(workshop, tmp_path: Path) -> None:
    ran = workshop.run(LOOP, tmp_path, Plan(at=(2,)), "--steps", "3", "--nan_guard")
    assert outcomes(ran) == "applied dropped applied applied"
    assert ran.timeline.counters["global_step"] == 3
    assert defects(ran) == []


def test_a_scheduler_that_is_not_prepared_steps_on_a_skipped_update(workshop, tmp_path: Path) -> None:
    ran = workshop.run(LOOP, tmp_path, Plan(at=(2,)), "--steps", "3", "--raw_scheduler")
    assert "scheduler stepped on a skipped update at attempt 2" in defects(ran)
    ran = workshop.run(LOOP, tmp_path, Plan(at=(2,)), "--steps", "3")
    assert not any("scheduler" in text for text in defects(ran))


def test_our_average_is_called_on_a_skipped_update_and_does_not_move(workshop, tmp_path: Path) -> None:
    more = ("--steps", "4", "--average", "ours")
    ran = workshop.run(LOOP, tmp_path, Plan(at=(2,)), *more, path=(ROOT,))
    assert ran.exit_code == 0, ran.output
    moved = [event["moved"] for event in ran.timeline.of("average")]
    assert moved == [None, False, None, None]
    assert not any("EMA" in text for text in defects(ran))


def test_the_average_of_torch_moves_on_a_skipped_update(workshop, tmp_path: Path) -> None:
    ran = workshop.run(LOOP, tmp_path, Plan(at=(2,)), "--steps", "4")
    assert [event["moved"] for event in ran.timeline.of("average")] == [None, True, None, None]
    assert "EMA moved on a skipped update at attempt 2" in defects(ran)


def test_a_bar_that_is_switched_off_is_counted(workshop, tmp_path: Path) -> None:
    ran = workshop.run(LOOP, tmp_path, Plan(at=(2,)), "--steps", "3", "--no_bar")
    assert [event["position"] for event in ran.timeline.of("bar")] == [1, 2, 3]
    assert "progress bar moved on a skipped update at attempt 2" in defects(ran)


def test_a_counter_that_starts_elsewhere_is_followed(workshop, tmp_path: Path) -> None:
    ran = workshop.run(LOOP, tmp_path, Plan(at=(2,)), "--steps", "3", "--start", "100")
    assert ran.timeline.counters["global_step"] == 103
    assert "global_step moved on a skipped update at attempt 2" in defects(ran)


def test_a_script_that_fails_leaves_what_was_seen(workshop, tmp_path: Path) -> None:
    ran = workshop.run(LOOP, tmp_path, Plan(at=(2,)), "--fail", "3")
    assert ran.exit_code == 1
    assert outcomes(ran) == "applied skipped applied"
    assert ran.timeline.complete


OURS = """
import sys
import torch
from accelerate_ext import Accelerator
from accelerate_ext.ema import PostHocEMA
accelerator = Accelerator(cpu=True)
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
ema = PostHocEMA(model)
optimizer = accelerator.prepare(torch.optim.AdamW(model.parameters(), lr=0.1, fused="--fused" in sys.argv))
for _ in range(4):
    with accelerator.attempt(model):
        accelerator.backward(model(torch.randn(2, 4)).square().mean())
        optimizer.step()
        optimizer.zero_grad()
    ema.update(accelerator.applied_step)
    global_step = accelerator.applied_step
accelerator.save_state(f"checkpoint-{global_step}")
"""


@pytest.mark.parametrize("options", [(), ("--fused",)], ids=["plain", "fused"])
def test_a_loop_on_our_accelerator_has_no_defect(workshop, tmp_path: Path, options: tuple[str, ...]) -> None:
    ran = workshop.run(script(tmp_path, OURS), tmp_path, Plan(at=(2,)), *options, path=(ROOT,))
    assert ran.exit_code == 0, ran.output
    assert outcomes(ran) == "applied skipped applied applied"
    assert ran.timeline.optimizers[1].scaler == "installed"
    assert [event["moved"] for event in ran.timeline.of("average")] == [None, False, None, None]
    assert ran.timeline.counters["global_step"] == 3
    assert defects(ran) == []
    assert notes(ran) == []


HEAD = """
import torch
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
"""

BARE = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda", enabled=torch.cuda.is_available())
for step in range(4):
    loss = model(torch.randn(2, 4)).square().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
"""


def test_a_scaler_of_the_script_that_is_off_is_switched_on_for_an_overflow_only(workshop, tmp_path: Path) -> None:
    path = script(tmp_path, HEAD + BARE)
    ran = workshop.run(path, tmp_path, Plan(at=(2,)))
    assert outcomes(ran) == "applied skipped applied applied"
    assert ran.timeline.optimizers[1].scaler == "installed"
    finite = workshop.run(path, tmp_path)
    assert finite.timeline.optimizers[1].scaler is None
    assert [attempt.losses for attempt in finite.timeline.attempts][:2] == [a.losses for a in ran.timeline.attempts][
        :2
    ]


def test_a_working_scaler_of_the_script_is_used(workshop, tmp_path: Path) -> None:
    text = BARE.replace('"cuda", enabled=torch.cuda.is_available()', '"cpu", init_scale=8.0')
    ran = workshop.run(script(tmp_path, HEAD + text), tmp_path, Plan(at=(2,)))
    assert outcomes(ran) == "applied skipped applied applied"
    assert ran.timeline.optimizers[1].scaler == "script"
    assert ran.timeline.attempts[2].scale[0] == 4.0


def test_an_optimizer_that_nobody_checks_loses_its_weights(workshop, tmp_path: Path) -> None:
    text = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    model(torch.randn(2, 4)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
    ran = workshop.run(script(tmp_path, HEAD + text), tmp_path, Plan(at=(2,)))
    assert defects(ran) == ["attempt 2 was applied with an infinite gradient: no scaler checks this optimizer"]


def test_a_step_that_no_backward_pass_came_before_is_no_attempt(workshop, tmp_path: Path) -> None:
    text = """
optimizer = torch.optim.AdamW(model.parameters())
for parameter in model.parameters():
    parameter.grad = torch.zeros_like(parameter)
optimizer.step()
optimizer.zero_grad()
model(torch.randn(2, 4)).square().mean().backward()
optimizer.step()
"""
    ran = workshop.run(script(tmp_path, HEAD + text), tmp_path)
    assert [attempt.number for attempt in ran.timeline.attempts] == [1]


def test_a_sparse_gradient_can_overflow(workshop, tmp_path: Path) -> None:
    text = """
from accelerate import Accelerator
accelerator = Accelerator(cpu=True)
model = torch.nn.Embedding(5, 3, sparse=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer = accelerator.prepare(model, optimizer)
for step in range(3):
    accelerator.backward(model(torch.tensor([1, 2])).square().mean())
    optimizer.step()
    optimizer.zero_grad()
"""
    ran = workshop.run(script(tmp_path, HEAD + text), tmp_path, Plan(at=(2,)))
    assert ran.exit_code == 0, ran.output
    assert outcomes(ran) == "applied skipped applied"


TWO = """
from accelerate import Accelerator
accelerator = Accelerator(cpu=True)
critic = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
critic_optimizer = torch.optim.AdamW(critic.parameters(), lr=0.1)
model, critic, optimizer, critic_optimizer = accelerator.prepare(model, critic, optimizer, critic_optimizer)
global_step = 0
for step in range(4):
    accelerator.backward(critic(torch.randn(2, 4)).square().mean())
    critic_optimizer.step()
    critic_optimizer.zero_grad()
    accelerator.backward(model(torch.randn(2, 4)).square().mean())
    optimizer.step()
    optimizer.zero_grad()
    global_step += 1
"""


@pytest.mark.parametrize("name", ["critic_optimizer", "AdamW", "1"])
def test_one_of_two_optimizers_overflows_by_its_variable_class_or_number(workshop, tmp_path: Path, name: str) -> None:
    ran = workshop.run(script(tmp_path, HEAD + TWO), tmp_path, Plan(at=(2,), optimizer=name))
    assert ran.exit_code == 0, ran.output
    names = {optimizer.number: optimizer.name for optimizer in ran.timeline.optimizers.values()}
    assert names == {1: "critic_optimizer", 2: "optimizer"}
    skipped = [(names[a.optimizer], a.number) for a in ran.timeline.attempts if not a.applied]
    assert skipped == [("critic_optimizer", 2)]
    assert defects(ran) == ["global_step moved on a skipped update at attempt 2 of critic_optimizer"]


def test_without_a_name_both_optimizers_overflow(workshop, tmp_path: Path) -> None:
    ran = workshop.run(script(tmp_path, HEAD + TWO), tmp_path, Plan(at=(2,)))
    assert [(a.optimizer, a.number) for a in ran.timeline.attempts if not a.applied] == [(1, 2), (2, 2)]


ACCELERATED = """
from accelerate import Accelerator
accelerator = Accelerator(cpu=True)
optimizer = accelerator.prepare(torch.optim.SGD(model.parameters(), lr=0.1))


def attempt():
    accelerator.backward(model(torch.randn(2, 4)).square().mean())
    optimizer.step()
    optimizer.zero_grad()

"""
COUNTERS = {
    "a local that is raised last": """
def train():
    global_step = 0
    for _ in range(4):
        attempt()
        global_step += 1
train()
""",
    "a global": """
global_step = 0
for _ in range(4):
    attempt()
    global_step += 1
""",
    "a variable of an outer function": """
def train():
    global_step = 0
    def update():
        nonlocal global_step
        attempt()
        global_step += 1
    for _ in range(4):
        update()
train()
""",
    "an attribute": """
class Loop:
    def __init__(self):
        self.global_step = 0
    def train(self):
        for _ in range(4):
            attempt()
            self.global_step += 1
Loop().train()
""",
    "an item of a dictionary": """
def train(state):
    for _ in range(4):
        attempt()
        state["global_step"] += 1
train({"global_step": 0})
""",
    "an attribute of an object that self holds": """
from types import SimpleNamespace
class Loop:
    state = None
    def train(self):
        self.state = SimpleNamespace(global_step=0)
        for _ in range(4):
            attempt()
            self.state.global_step += 1
Loop().train()
""",
    "a tensor": """
def train():
    global_step = torch.zeros((), dtype=torch.int64)
    for _ in range(4):
        attempt()
        global_step = global_step + 1
train()
""",
    "a local beside a function that is given its value": """
def update(global_step):
    attempt()
def train():
    global_step = 0
    for _ in range(4):
        update(global_step)
        global_step += 1
train()
""",
}


@pytest.mark.parametrize("text", COUNTERS.values(), ids=COUNTERS)
def test_a_counter_is_found_wherever_it_lives(workshop, tmp_path: Path, text: str) -> None:
    ran = workshop.run(script(tmp_path, HEAD + ACCELERATED + text), tmp_path, Plan(at=(2,)))
    assert ran.exit_code == 0, ran.output
    assert ran.timeline.counters["global_step"] == 4
    assert "global_step moved on a skipped update at attempt 2" in defects(ran)


def test_a_counter_of_another_name_is_followed_on_request(workshop, tmp_path: Path) -> None:
    text = """
class State:
    passes = 0
def train():
    state = State()
    state.passes = 0
    for _ in range(4):
        attempt()
        state.passes += 1
train()
"""
    path = script(tmp_path, HEAD + ACCELERATED + text)
    ran = workshop.run(path, tmp_path, Plan(at=(2,)), counters=("state.passes",))
    assert ran.timeline.counters == {"state.passes": 4}


EMA_CLASS = """
class Slow:
    def __init__(self, model):
        self.weights = [parameter.detach().clone() for parameter in model.parameters()]
    def follow(self, parameters):
        for slow, fast in zip(self.weights, parameters):
            slow.lerp_(fast.detach(), 0.1)
slow = Slow(model)
for _ in range(3):
    attempt()
    slow.follow(model.parameters())
"""


def test_an_average_of_another_name_is_watched_on_request(workshop, tmp_path: Path) -> None:
    path = script(tmp_path, HEAD + ACCELERATED + EMA_CLASS)
    ran = workshop.run(path, tmp_path, Plan(at=(2,)), watch=("__main__:Slow.follow",))
    assert [event["moved"] for event in ran.timeline.of("average")] == [None, True, None]
    assert workshop.run(path, tmp_path, Plan(at=(2,))).timeline.of("average") == []


def test_an_average_without_a_hash_can_be_watched(workshop, tmp_path: Path) -> None:
    text = EMA_CLASS.replace("class Slow:", "class Slow:\n    def __eq__(self, other): raise TypeError\n")
    path = script(tmp_path, HEAD + ACCELERATED + text)
    ran = workshop.run(path, tmp_path, Plan(at=(2,)), watch=("__main__:Slow.follow",))
    assert ran.exit_code == 0, ran.output
    assert [event["moved"] for event in ran.timeline.of("average")] == [None, True, None]


def test_what_cannot_be_watched_is_told(workshop, tmp_path: Path) -> None:
    path = script(tmp_path, HEAD + ACCELERATED + "attempt()\n")
    ran = workshop.run(path, tmp_path, Plan(), watch=("__main__:Slow.follow", "not_there:EMA.update"))
    assert "the script never imported not_there" in " ".join(ran.timeline.notes)
    assert "cannot observe all of __main__" in " ".join(ran.timeline.notes)


def test_an_average_that_is_a_function_is_seen(workshop, tmp_path: Path) -> None:
    text = """
def update_ema(ema_model, model, decay=0.9):
    for slow, fast in zip(ema_model.parameters(), model.parameters()):
        slow.data.mul_(decay).add_(fast.data, alpha=1 - decay)
ema = torch.nn.Linear(4, 1)
global_step = 0
for _ in range(3):
    attempt()
    if accelerator.sync_gradients:
        update_ema(ema, model)
        global_step += 1
"""
    ran = workshop.run(script(tmp_path, HEAD + ACCELERATED + text), tmp_path, Plan(at=(2,)))
    assert [event["moved"] for event in ran.timeline.of("average")] == [None, True, None]


def test_checkpoints_and_logs_are_told_with_their_names_and_steps(workshop, tmp_path: Path) -> None:
    text = """
for step in range(2):
    attempt()
    accelerator.log({"loss": torch.tensor(float(step + 1)), "lr": 0.5, "name": "x"}, step=step)
accelerator.save_state("saved/checkpoint-2")
torch.save(model.state_dict(), "model.pt")
"""
    ran = workshop.run(script(tmp_path, HEAD + ACCELERATED + text), tmp_path)
    assert ran.exit_code == 0, ran.output
    assert [(event["step"], event["values"]) for event in ran.timeline.of("log")] == [
        (0, {"loss": 1.0, "lr": 0.5}),
        (1, {"loss": 2.0, "lr": 0.5}),
    ]
    assert ran.timeline.of("save")[0]["name"] == "saved/checkpoint-2"
