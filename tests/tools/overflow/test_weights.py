"""What counts as a change: every bit, shape, kind and name; not NaN that stays NaN."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch

from tools.overflow.inside.weights import State, Weights

NAN = float("nan")


def average() -> SimpleNamespace:
    slow = torch.nn.Linear(2, 1)
    return SimpleNamespace(
        module=slow, tensor=torch.zeros(3), steps=0, rate=NAN, parts=[torch.ones(2)], by_name={"a": torch.ones(1)}
    )


CHANGES: dict[str, Callable[[SimpleNamespace], object]] = {
    "one element": lambda owner: owner.tensor[1].add_(1e-30),
    "a parameter of a module": lambda owner: owner.module.weight.data[0, 0].mul_(2),
    "an item of a list": lambda owner: owner.parts[0].mul_(2),
    "an item of a mapping": lambda owner: owner.by_name["a"].mul_(2),
    "a number": lambda owner: setattr(owner, "steps", 1),
    "the kind of a number": lambda owner: setattr(owner, "steps", 0.0),
    "a tensor of another shape": lambda owner: setattr(owner, "tensor", torch.zeros(3, 1)),
    "a tensor of another dtype": lambda owner: setattr(owner, "tensor", torch.zeros(3, dtype=torch.float64)),
    "a number in a tensor's place": lambda owner: setattr(owner, "tensor", 0),
    "something new": lambda owner: owner.by_name.update(b=torch.ones(1)),
    "something gone": lambda owner: owner.parts.clear(),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_every_change_of_what_an_average_holds_is_seen(change) -> None:
    owner = average()
    state = State(owner)
    assert not state.changed()
    change(owner)
    assert state.changed()


def test_nan_that_stays_nan_is_no_change() -> None:
    weights = [torch.tensor([1.0, NAN])]
    before = Weights(weights)
    weights[0].copy_(torch.tensor([1.0, NAN]))
    assert not before.changed()
    weights[0][0] = NAN
    assert before.changed()
