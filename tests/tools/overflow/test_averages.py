"""Averages of the script's own: how they are found, and whose updates they follow."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.overflow.launch import Plan

pytestmark = [pytest.mark.processes, pytest.mark.xdist_group("overflow-workshop")]
HEAD = """
import torch
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def attempt():
    scaler.scale(model(torch.randn(2, 4)).square().mean()).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()


class Slow:
    def __init__(self, model):
        self.model = model
        self.weights = [parameter.detach().clone() for parameter in model.parameters()]

    def follow(self, parameters=None):
        for slow, fast in zip(self.weights, parameters or self.model.parameters()):
            slow.lerp_(fast.detach(), 0.1)

"""
LOOP = """
for _ in range(4):
    attempt()
    CALL
"""
MOVES = [None, True, None, None]  # the second attempt overflows; of the others nothing has to be proven


def run(workshop, folder: Path, text: str, path: tuple[Path, ...] = (), at: int = 2, **more):
    script = folder / "script.py"
    script.write_text(HEAD + text)
    ran = workshop.run(script, folder, Plan(at=(at,)), path=path, **more)
    assert ran.exit_code == 0, ran.output
    assert [attempt.number for attempt in ran.timeline.attempts if not attempt.applied] == [at]
    assert len(ran.timeline.attempts) == 4
    return ran


def moves(ran) -> list[bool | None]:
    return [event["moved"] for event in ran.timeline.of("average")]


@pytest.mark.parametrize("bases", ["Slow", "Mixin, Slow"])
def test_a_method_that_is_inherited_is_watched(workshop, tmp_path: Path, bases: str) -> None:
    text = f"class Mixin: pass\nclass Fast({bases}): pass\nfast = Fast(model)\n" + LOOP.replace(
        "CALL", "fast.follow()"
    )
    ran = run(workshop, tmp_path, text, watch=("__main__:Fast.follow",))
    assert ran.timeline.notes == []
    assert moves(ran) == MOVES
    assert {event["kind"] for event in ran.timeline.of("average")} == {"Fast"}


def test_a_method_that_a_class_does_not_have_is_told(workshop, tmp_path: Path) -> None:
    ran = run(workshop, tmp_path, LOOP.replace("CALL", "pass"), watch=("__main__:Slow.folow",))
    assert "cannot observe all of __main__: AttributeError: Slow has no method folow" in ran.timeline.notes


@pytest.mark.parametrize(
    ("call", "numbers"),
    [
        ("slow.follow()", [1]),
        ("slow.follow(list(model.parameters()))", [1]),
        ("slow.follow(model.parameters())", [1]),
        ("slow.follow(parameters=tuple(model.parameters()))", [1]),
        ("slow.follow([torch.ones(1, 4), torch.ones(1)])", []),
    ],
)
def test_an_average_belongs_to_the_optimizer_whose_parameters_it_is_given_or_follows(
    workshop, tmp_path: Path, call: str, numbers: list[int]
) -> None:
    ran = run(workshop, tmp_path, "slow = Slow(model)\n" + LOOP.replace("CALL", call), watch=("__main__:Slow.follow",))
    assert moves(ran) == MOVES
    assert [event["optimizers"] for event in ran.timeline.of("average")] == [numbers] * 4


def test_an_average_that_cannot_be_referred_to_weakly_is_watched(workshop, tmp_path: Path) -> None:
    text = """
class Slots:
    __slots__ = ("weights",)
    def __init__(self):
        self.weights = [parameter.detach().clone() for parameter in model.parameters()]
    follow = Slow.follow
slots = Slots()
"""
    text += LOOP.replace("CALL", "slots.follow(list(model.parameters()))")
    ran = run(workshop, tmp_path, text, watch=("__main__:Slots.follow",))
    assert moves(ran) == MOVES
    assert {event["number"] for event in ran.timeline.of("average")} == {1}


def test_an_average_that_is_made_after_the_first_update_is_found_then(workshop, tmp_path: Path) -> None:
    text = """
ema = None
for _ in range(4):
    attempt()
    if ema is None:
        ema = Slow(model)
    else:
        ema.follow()
"""
    assert moves(run(workshop, tmp_path, text, at=3, averages=("ema.follow",))) == [None, True, None]


def test_an_average_that_is_an_object_to_be_called_is_seen(workshop, tmp_path: Path) -> None:
    text = """
class Average(Slow):
    def __call__(self, parameters):
        self.follow(parameters)
update_ema = Average(model)
"""
    ran = run(
        workshop, tmp_path, text + LOOP.replace("CALL", "update_ema(model.parameters())"), averages=("update_ema",)
    )
    assert moves(ran) == MOVES


FUNCTION = """
def update_ema(slow, parameters):
    if len(slow) > 1:
        update_ema(slow[:1], parameters[:1])
        update_ema(slow[1:], parameters[1:])
        return
    slow[0].lerp_(parameters[0].detach(), 0.1)
"""


def test_a_function_that_calls_itself_is_one_call_of_the_average(workshop, tmp_path: Path) -> None:
    text = FUNCTION + "weights = Slow(model).weights\n"
    text += LOOP.replace("CALL", "update_ema(weights, list(model.parameters()))")
    assert moves(run(workshop, tmp_path, text, averages=("update_ema",))) == MOVES


def test_a_function_inside_another_is_left_as_it_is(workshop, tmp_path: Path) -> None:
    inner = "\n".join("    " + line for line in FUNCTION.splitlines())
    text = f"""
def main():
    weights = Slow(model).weights
{inner}
    plain = update_ema
    for _ in range(4):
        attempt()
        update_ema(weights, list(model.parameters()))
        assert update_ema is plain and not hasattr(plain, "__wrapped__")
main()
"""
    ran = run(workshop, tmp_path, text, averages=("update_ema",))
    assert moves(ran) == []


def test_a_release_that_has_only_some_of_the_known_classes_is_observed(workshop, tmp_path: Path) -> None:
    package = tmp_path / "site" / "timm" / "utils"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").touch()
    (package / "__init__.py").touch()
    (package / "model_ema.py").write_text(
        "class ModelEmaV2:\n"
        "    def __init__(self, weights):\n"
        "        self.weights = weights\n"
        "    def update(self, model):\n"
        "        for slow, fast in zip(self.weights, model.parameters()):\n"
        "            slow.lerp_(fast.detach(), 0.1)\n"
    )
    text = "from timm.utils.model_ema import ModelEmaV2\nkept = ModelEmaV2(Slow(model).weights)\n"
    ran = run(workshop, tmp_path, text + LOOP.replace("CALL", "kept.update(model)"), path=(tmp_path / "site",))
    assert moves(ran) == MOVES
    assert ran.timeline.notes == []
