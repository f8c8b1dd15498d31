"""A dtype is what it is by any of its names, wherever one is asked for."""

import pytest
import torch

from accelerate_ext.ema import plan, reconstruct, sweep
from accelerate_ext.ema.dtypes import RESULTS, dtype_of, name_of


@pytest.mark.parametrize("given", ["bfloat16", "bf16", torch.bfloat16], ids=str)
def test_a_dtype_is_taken_by_any_of_its_names(given, known_run, tmp_path):
    assert (dtype_of(given), name_of(given)) == (torch.bfloat16, "bfloat16")
    assert plan(100, 4, dtype=given).dtype == "bfloat16"
    known_run.save_all(8)
    assert reconstruct(known_run.folder, 0.05, dtype=given).tensors[0]["scale"].dtype == torch.bfloat16
    swept = sweep(known_run.folder, lambda path: 1.0, tmp_path / "sweep.json", [0.05], dtype=given)
    assert swept.settings["dtype"] == "bfloat16"


@pytest.mark.parametrize("given", ["float64", "int8", torch.float64, torch.int8, "torch", None, 32], ids=str)
def test_what_is_no_dtype_of_snapshots_is_named(given):
    with pytest.raises(ValueError, match=r"^`dtype` must be one of float32, bfloat16, float16, got "):
        dtype_of(given)


def test_results_may_have_64_bits():
    assert dtype_of("fp64", RESULTS) == dtype_of(torch.float64, RESULTS) == torch.float64
