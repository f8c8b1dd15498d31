"""Numbers as they are written down."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tools.overflow.inside.events import scalar


class Odd:
    """Says that it has one element and cannot give it."""

    shape = ()

    def item(self) -> float:
        raise RuntimeError("it is on a device that is gone")


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (3, 3),
        (0.5, 0.5),
        (float("nan"), "nan"),
        (float("inf"), "inf"),
        (torch.tensor(float("-inf")), "-inf"),
        (torch.tensor([2.0]), 2.0),
        (np.float32(0.25), 0.25),
        (torch.ones(2), None),
        (True, None),
        ("3", None),
        (None, None),
        (object(), None),
        (Odd(), None),
        (torch.empty((), device="meta"), None),
    ],
)
def test_a_number_is_written_and_all_else_is_left_out(value: object, written: object) -> None:
    assert scalar(value) == written
