"""What is taken for a count, a limit, a whole number, a switch, and what is said of anything else."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from accelerate_ext.arguments import check_switches, count, limit, number_problem, whole


@pytest.mark.parametrize("take", [count, limit], ids=["count", "limit"])
@pytest.mark.parametrize("value", [3, np.int64(3), torch.tensor(3)], ids=["int", "numpy", "torch"])
def test_a_count_and_a_limit_are_taken_whatever_their_type(take, value):
    number = take("n", value)
    assert number == 3 and type(number) is int


@pytest.mark.parametrize("value", [2.5, 3.0, True, "3", None, -1, torch.tensor(2.5)], ids=str)
def test_what_is_no_count_is_named(value):
    with pytest.raises(ValueError, match=r"^`n` must be a whole number from 0 up, got "):
        count("n", value)


def test_a_limit_may_be_none_but_not_zero():
    assert limit("n", None) is None
    with pytest.raises(ValueError, match=r"^`n` must be None or a whole number from 1 up, got 0$"):
        limit("n", 0)


@pytest.mark.parametrize("value", [3, 3.0, np.int64(3), torch.tensor(3)])
def test_a_whole_number_is_taken_whatever_its_type(value):
    number = whole("t", value, 3)
    assert number == 3 and type(number) is int


@pytest.mark.parametrize("value", [2.5, "3", None, float("inf"), float("nan")])
def test_what_is_no_whole_number_is_named(value):
    with pytest.raises(TypeError, match=r"^`t` must be a whole number, got "):
        whole("t", value)


def test_a_number_has_no_least_unless_it_is_given():
    assert whole("t", -3) == -3
    with pytest.raises(ValueError, match=r"^`t` must be 0 or more, got -3$"):
        whole("t", -3, 0)


@pytest.mark.parametrize("value", [0, -1, float("inf"), float("nan"), "1", None])
def test_what_is_no_number_above_zero_is_named(value):
    assert number_problem("x", value) == f"`x` must be a number above 0, got {value!r}"
    assert number_problem("x", 0.5) is None


def test_a_switch_is_true_or_false():
    check_switches(one=True, other=False)
    with pytest.raises(TypeError, match=r"^`other` must be True or False, got 'no'$"):
        check_switches(one=True, other="no")
