"""Finding and reading a script's own variables, without torch."""

from __future__ import annotations

import sys
import weakref

import pytest
from accelerate import Accelerator

from tools.overflow.inside import lookup
from tools.overflow.inside.counters import Counter, Counters
from tools.overflow.inside.lookup import words


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("global_step", ["global_step"]),
        ("self.global_step", ["global_step"]),
        ("self.state['step']", ["state", "step"]),
        ("state.step", ["state", "step"]),
        ("self", ["self"]),
    ],
)
def test_the_names_in_a_key(path: str, expected: list[str]) -> None:
    assert words(path) == expected


def test_a_local_is_read_again_when_its_function_has_returned() -> None:
    counter = Counter("global_step")

    def train() -> None:
        global_step = 0
        for _ in range(3):
            counter.sample(may_search=True)
            global_step += 1  # noqa: SIM113

    train()
    assert (counter.first, counter.value) == (0, 2)
    counter.sample(may_search=False)
    assert counter.value == 3


def test_a_second_loop_is_found_when_the_first_has_returned() -> None:
    counter = Counter("global_step")

    def train(begin: int) -> None:
        global_step = begin
        for _ in range(2):
            counter.sample(may_search=True)
            global_step += 1

    train(0)
    train(10)
    counter.sample(may_search=False)
    assert counter.value == 12


def test_a_variable_that_is_assigned_goes_before_one_that_was_only_handed_down() -> None:
    counter = Counter("global_step")

    def update(global_step: int) -> None:
        counter.sample(may_search=True)

    def train() -> None:
        global_step = 0
        for _ in range(3):
            update(global_step)
            global_step += 1  # noqa: SIM113

    train()
    counter.sample(may_search=False)
    assert counter.value == 3


class Odd:
    """Has the shape of a number and is none."""

    shape = ()


@pytest.mark.parametrize("value", [True, 1.5, "3", None, Odd()])
def test_what_is_no_whole_number_is_no_counter(value: object) -> None:
    counter = Counter("global_step")

    def train() -> None:
        global_step = value  # noqa: F841
        counter.sample(may_search=True)

    train()
    assert counter.value is None


def test_reading_variables_keeps_none_of_them_alive() -> None:
    class Tensor:
        pass

    def loop() -> list[bool]:
        gone = []
        for _ in range(2):
            tensor = Tensor()
            reference = weakref.ref(tensor)
            lookup.variables(sys._getframe())
            del tensor
            gone.append(reference() is None)
        return gone

    assert loop() == [True, True]


def test_what_locals_gives_a_function_is_not_changed_by_reading() -> None:
    def train() -> dict[str, object]:
        first = 1
        config = locals()
        second = 2
        lookup.variables(sys._getframe())
        return {"config": sorted(config), "values": first + second}

    assert train() == {"config": ["first"], "values": 3}


def test_a_counter_that_a_script_never_had_is_not_looked_for_any_more() -> None:
    counter = Counter("global_step")

    def train(attempts: int) -> None:
        for _ in range(attempts):
            counter.sample(may_search=True)
        global_step = 7  # noqa: F841
        counter.sample(may_search=True)

    train(49)
    assert counter.value == 7
    late = counter = Counter("global_step")
    train(50)
    assert late.value is None


def test_a_function_to_read_a_counter_that_nobody_asked_for_is_not_kept() -> None:
    counters = Counters(["state.step"])
    counters.give("global_step", lambda: 3, "trainer.state.global_step")
    assert counters.moved(may_search=False) == []
    counters.give("state.step", lambda: 3, "trainer.state.step")
    assert [(counter.name, counter.value) for counter in counters.moved(may_search=False)] == [("state.step", 3)]


def test_the_micro_batches_that_an_accelerator_counts_are_no_counter_of_the_script() -> None:
    class State:
        def __init__(self) -> None:
            self.step = 7

    counter = Counter("self.step")

    def loop() -> None:
        accelerator, state = Accelerator(cpu=True), State()
        accelerator.step = 3
        counter.sample(True)
        state.step += accelerator.step

    loop()
    assert (counter.first, counter.where) == (7, "state.self.step")
