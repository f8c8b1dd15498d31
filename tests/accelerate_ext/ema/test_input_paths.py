"""What a path that is given may be: one file, one checkpoint, or a folder of many."""

import shutil

import pytest
import torch
from safetensors.torch import save_file

from accelerate_ext.ema import reconstruct
from accelerate_ext.ema.inputs import InputOptions, find_sources


def steps(*paths) -> list[float]:
    return sorted(source.step for source in find_sources(paths, InputOptions()))


def test_snapshots_may_be_given_one_by_one(known_run):
    folder = known_run.save_all(8)
    (wanted,) = reconstruct(folder, 0.07).tensors
    (got,) = reconstruct(sorted(folder.iterdir()), 0.07).tensors
    assert got.keys() == wanted.keys()
    assert all(torch.equal(got[name], wanted[name]) for name in wanted)


def test_one_checkpoint_folder_is_one_checkpoint(known_run, tmp_path):
    for step in (400, 800):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        save_file(known_run.model(step), folder / "model.safetensors")
    assert steps(tmp_path / "checkpoint-400") == [400]
    assert steps(tmp_path / "checkpoint-400", tmp_path / "checkpoint-800") == [400, 800]


@pytest.mark.parametrize("name", [".hidden_500", "reconstructed-0.1_500"])
def test_hidden_files_and_averages_that_were_built_here_are_no_checkpoints(known_run, tmp_path, name):
    save_file(known_run.model(400), tmp_path / "model_400.safetensors")
    assert steps(tmp_path) == [400]
    shutil.copy(tmp_path / "model_400.safetensors", tmp_path / f"{name}.safetensors")
    assert steps(tmp_path) == [400]
