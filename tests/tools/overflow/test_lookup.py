"""From a key in the script to the object that it stands for."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from tools.overflow.inside.lookup import resolve

GLOBAL_AVERAGE = object()


class Holder:
    """Keeps its average behind a property, as wrappers of modules do."""

    def __init__(self, average: object) -> None:
        self.held = {"average": average}
        self._hidden = average

    @property
    def hidden(self) -> object:
        return self._hidden

    def find(self, path: str) -> object:
        return resolve(path)[0]


@pytest.mark.parametrize("path", ["self.held['average']", "self.hidden", "held['average']"])
def test_items_attributes_and_properties_of_self_are_followed(path: str) -> None:
    average = object()
    assert Holder(average).find(path.replace("self.hidden", "self._hidden")) is average


def test_a_local_leads_through_items_attributes_and_properties() -> None:
    average = object()

    def train() -> tuple[object, bool]:
        state = SimpleNamespace(parts={"holder": Holder(average)})  # noqa: F841
        found, frame = resolve("state.parts['holder'].hidden")
        return found, frame is sys._getframe()

    assert train() == (average, True)


def test_a_global_is_found_and_a_local_of_its_name_goes_before_it() -> None:
    def outer() -> object:
        return resolve("GLOBAL_AVERAGE")[0]

    assert outer() is GLOBAL_AVERAGE

    def inner() -> object:
        GLOBAL_AVERAGE = "local"  # noqa: F841
        return resolve("GLOBAL_AVERAGE")[0]

    assert inner() == "local"


@pytest.mark.parametrize("path", ["nowhere", "nowhere.deeper", "GLOBAL_AVERAGE.nothing"])
def test_what_is_not_there_is_nothing(path: str) -> None:
    assert resolve(path) == (None, None)
