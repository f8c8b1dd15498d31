"""A function round another, in its place."""

from __future__ import annotations

import pytest

from tools.overflow.inside.wrapping import around


class Made:
    def plain(self, x):
        return self, x

    @staticmethod
    def alone(x):
        return x

    @classmethod
    def of(cls, x):
        return cls, x


@pytest.mark.parametrize("name", ["plain", "alone", "of"])
def test_a_method_stays_of_its_kind_and_keeps_its_result(name: str) -> None:
    seen = []
    owner = type("Copy", (), dict(vars(Made)))
    thing = owner()
    expected = getattr(thing, name)(3)

    def outer(call, *args, **kwargs):
        seen.append(kwargs.get("x", args[-1:]))
        return call()

    around(owner, name, outer)
    assert getattr(thing, name)(3) == expected
    assert getattr(thing, name)(x=3) == expected
    assert seen == [(3,), 3]


def test_what_is_not_there_or_only_inherited_is_told() -> None:
    child = type("Child", (Made,), {})
    with pytest.raises(AttributeError, match=r"^Child has no plain of its own$"):
        around(child, "plain", lambda call, *args: call())
    assert "plain" not in vars(child)
