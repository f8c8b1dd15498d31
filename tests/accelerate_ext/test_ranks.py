"""Naming the ranks that disagree."""

from __future__ import annotations

import accelerate
import pytest

from accelerate_ext import RankDisagreementError
from accelerate_ext.ranks import check_agreement, gather_counts


def test_ranks_that_agree_are_fine():
    check_agreement([{"applied_step": 7}] * 4)


def test_one_process_talks_to_nobody():
    accelerator = accelerate.Accelerator(cpu=True)
    assert gather_counts({"applied_step": 7}, accelerator) == [{"applied_step": 7}]


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ([7, 6], "applied_step: rank 0 has 7, rank 1 has 6"),
        ([7, 6, 7, 7], "applied_step: rank 1 has 6, ranks 0 and 2 to 3 have 7"),
        ([1, 1, 2, 3, 3, 3], "applied_step: rank 2 has 2, ranks 0 to 1 have 1, ranks 3 to 5 have 3"),
    ],
)
def test_the_odd_ranks_are_named_first(values, named):
    with pytest.raises(RankDisagreementError) as error:
        check_agreement([{"attempted_step": 9, "applied_step": value} for value in values])
    assert named in str(error.value)
    assert "attempted_step" not in str(error.value)
    assert "restart from a checkpoint" in str(error.value)


def test_a_count_that_a_rank_does_not_have_is_named():
    with pytest.raises(RankDisagreementError, match="applied_step of optimizer 1: rank 0 has 3, rank 1 has nothing"):
        check_agreement([{"applied_step": 3, "applied_step of optimizer 1": 3}, {"applied_step": 3}])
