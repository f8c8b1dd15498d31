"""What is asked of the files before an average is built from them."""

import resource

import pytest
import torch
from safetensors.torch import load_file, save_file

from accelerate_ext.ema import SnapshotError, reconstruct


def save(folder, tensors, steps=(100, 200, 300)):
    folder.mkdir()
    for step in steps:
        save_file({name: tensor + step for name, tensor in tensors.items()}, folder / f"model_{step}.safetensors")
    return folder


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"w": torch.ones(2), "z": torch.ones(2, dtype=torch.complex64)}, r"complex tensors, .*: \['z'\]"),
        ({"steps": torch.ones(2, dtype=torch.int64)}, "has no floating-point tensor to average"),
    ],
)
def test_files_that_cannot_be_averaged_are_refused_by_name_and_nothing_is_written(tmp_path, tensors, message):
    folder = save(tmp_path / "in", tensors)
    with pytest.raises(SnapshotError, match=rf"model_300\.safetensors.*{message}"):
        reconstruct(folder, 0.1, output=tmp_path / "out.safetensors")
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_patterns_with_the_same_width_share_one_average(known_run, tmp_path):
    folder = known_run.save_all(8)
    options = {"output": tmp_path / "out.safetensors", "widths": {"embed.*": 0.07, "layer.*": 0.07, "scale": 0.1}}
    result = reconstruct(folder, 0.1, **options)
    got = load_file(tmp_path / "out.safetensors")
    narrow, wide = (known_run.average(1600, width) for width in (0.07, 0.1))
    for name in ("embed.weight", "layer.weight", "layer.bias"):
        assert (got[name] - narrow[name]).norm() < 0.2 * (narrow[name] - wide[name]).norm()
    assert result.width_errors["embed.*"] == result.width_errors["layer.*"]


def test_many_files_at_once_raise_the_limit_as_far_as_the_system_lets(known_run, tmp_path):
    folder = known_run.save_all(8)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    low = min(250, before[1])
    resource.setrlimit(resource.RLIMIT_NOFILE, (low, before[1]))
    try:
        reconstruct(folder, 0.1)
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (min(16 + 256, before[1]), before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
