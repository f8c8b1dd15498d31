"""Files of averages, as they are written: every value at its place, whatever is written together, or no file at all."""

import errno
import os

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from accelerate_ext.ema import SnapshotError, tensor_file
from accelerate_ext.ema.stream_file import CHUNK, StreamFile
from accelerate_ext.ema.tensor_file import Layout, Slot, TensorFile

SIZES = [3, 0, 1, CHUNK - 4, 2, 5, CHUNK, 7, CHUNK + 1, 1, 2 * CHUNK + 3, CHUNK // 2, CHUNK // 2, CHUNK // 2, 9]


def averages(dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    return {f"{i}": torch.randn(size, generator=generator).to(dtype) for i, size in enumerate(SIZES)}


def write(path, tensors, stored=torch.float32, copies=()):
    kept = {name: tensor.dtype if name in copies else stored for name, tensor in tensors.items()}
    slots = [Slot(name, kept[name], tuple(t.shape), name not in copies) for name, t in tensors.items()]
    file = StreamFile(path, Layout(slots), {"format": "pt"})
    try:
        for slot in file.layout.slots:
            file.add(tensors[slot.name])
        file.finish()
        return file.publish()
    finally:
        file.abandon()


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kept", [torch.float32, torch.float64])
def test_small_tensors_are_written_together_and_come_back_as_they_were(tmp_path, stored, kept):
    tensors = averages(kept)
    counts = {"count": torch.tensor(7), "mask": torch.tensor([True, False]), "mean": torch.tensor([0.1, float("inf")])}
    loaded = load_file(write(tmp_path / "a.safetensors", tensors | counts, stored, counts))
    assert loaded.keys() == tensors.keys() | counts.keys()
    assert all(torch.equal(loaded[name], tensor.to(stored)) for name, tensor in tensors.items())
    assert all(torch.equal(loaded[name], tensor) for name, tensor in counts.items())
    with safe_open(tmp_path / "a.safetensors", "pt") as file:
        error = float(file.metadata()["rounding_error"])
    whole = torch.cat([*tensors.values()]).double()
    expected = (whole.to(stored).double() - whole).square().mean().sqrt() / whole.square().mean().sqrt()
    assert error == pytest.approx(expected.item(), rel=1e-9)


def test_complex_and_transposed_tensors_are_written_in_the_order_of_their_dimensions(tmp_path):
    tensors = {"spectrum": torch.tensor([1 + 2j, 3 - 1j]), "turned": torch.randn(300, 1000).t()}
    slots = [Slot(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()]
    file = StreamFile(tmp_path / "a.safetensors", Layout(slots), {})
    for slot in file.layout.slots:
        file.add(tensors[slot.name])
    file.finish()
    loaded = load_file(file.publish())
    assert all(torch.equal(loaded[name], tensor) for name, tensor in tensors.items())


@pytest.mark.parametrize("wrong", [["2"], ["0", "4"], ["8"], ["10", "13"], ["3", "5", "14"]])
def test_tensors_that_are_not_finite_are_named_and_no_others(tmp_path, wrong):
    tensors = averages()
    for name in wrong:
        tensors[name][-1] = float("nan")
    with pytest.raises(SnapshotError, match=rf"dtype asked for: {', '.join(wrong)}\. "):
        write(tmp_path / "a.safetensors", tensors)
    assert os.listdir(tmp_path) == []


def test_large_values_whose_sum_is_too_large_are_no_error(tmp_path):
    tensors = {"a": torch.full((10,), 3e38), "b": torch.full((CHUNK + 1,), 3e38)}
    loaded = load_file(write(tmp_path / "a.safetensors", tensors))
    assert all(torch.equal(loaded[name], tensor) for name, tensor in tensors.items())


def test_tensors_of_another_shape_and_too_few_are_errors(tmp_path):
    layout = Layout([Slot("a", torch.float32, (2,)), Slot("b", torch.float32, ())])
    file = StreamFile(tmp_path / "a.safetensors", layout, {})
    with pytest.raises(ValueError, match=r"a must have shape \[2\], got \[3\]"):
        file.add(torch.zeros(3))
    file.abandon()
    file = StreamFile(tmp_path / "a.safetensors", layout, {})
    file.add(torch.zeros(2))
    with pytest.raises(ValueError, match="still needs the tensor b"):
        file.finish()
    file.abandon()
    assert os.listdir(tmp_path) == []


def test_a_file_that_is_there_is_replaced_only_if_asked_and_only_in_the_end(tmp_path):
    path, layout = tmp_path / "a.safetensors", Layout([Slot("a", torch.float32, (2,))])
    path.write_bytes(b"before")
    with pytest.raises(FileExistsError, match=r"a\.safetensors exists already; it was not overwritten"):
        TensorFile(path, layout, {})
    file = TensorFile(path, layout, {}, overwrite=True)
    file.write("a", 0, torch.ones(2))
    file.synchronise()
    assert path.read_bytes() == b"before"
    file.publish()
    assert torch.equal(load_file(path)["a"], torch.ones(2))
    assert os.listdir(tmp_path) == ["a.safetensors"]


def test_what_goes_wrong_is_told_with_the_space_only_where_there_is_none(tmp_path):
    path = tmp_path / "nowhere" / "a.safetensors"
    with pytest.raises(FileNotFoundError, match=r"No such file or directory; no part of the file is left") as told:
        TensorFile(path, Layout([Slot("a", torch.float32, (2,))]), {})
    assert told.value.filename == str(path)


def test_two_files_of_one_name_in_the_making_are_two_files(tmp_path):
    path, layout = tmp_path / "a.safetensors", Layout([Slot("a", torch.float32, (2,))])
    one, other = TensorFile(path, layout, {}), TensorFile(path, layout, {})
    one.write("a", 0, torch.ones(2))
    other.write("a", 0, torch.zeros(2))
    one.publish()
    with pytest.raises(FileExistsError, match="exists already"):
        other.publish()
    other.abandon()
    assert torch.equal(load_file(path)["a"], torch.ones(2))
    assert os.listdir(tmp_path) == ["a.safetensors"]


@pytest.mark.parametrize("has_links", [True, False])
def test_a_file_that_came_while_ours_was_written_stays(tmp_path, monkeypatch, has_links):
    def no_links(*arguments):
        raise OSError(errno.EPERM, "Operation not permitted")

    path = tmp_path / "a.safetensors"
    file = TensorFile(path, Layout([Slot("a", torch.float32, (2,))]), {})
    file.synchronise()
    path.write_bytes(b"first")
    if not has_links:
        monkeypatch.setattr(os, "link", no_links)
    with pytest.raises(FileExistsError, match="exists already"):
        file.publish()
    file.abandon()
    assert path.read_bytes() == b"first"
    assert os.listdir(tmp_path) == ["a.safetensors"]


def test_a_file_system_without_links_or_reserved_space_is_good_enough(tmp_path, monkeypatch):
    def unsupported(*arguments):
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(os, "link", unsupported)
    monkeypatch.setattr(os, "posix_fallocate", unsupported)
    tensors = averages()
    loaded = load_file(write(tmp_path / "a.safetensors", tensors))
    assert all(torch.equal(loaded[name], tensor) for name, tensor in tensors.items())
    assert os.listdir(tmp_path) == ["a.safetensors"]


def test_a_disk_that_turns_out_to_be_full_leaves_nothing(tmp_path, monkeypatch):
    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    for name in ("_reserve", "_write_at"):
        with monkeypatch.context() as patch:
            patch.setattr(tensor_file, name, full)
            with pytest.raises(OSError, match=r"No space left on device: 4,\d+ bytes are needed, [\d,]+ are free"):
                TensorFile(tmp_path / "a.safetensors", Layout([Slot("a", torch.float32, (1000,))]), {})
    file = TensorFile(tmp_path / "a.safetensors", Layout([Slot("a", torch.float32, (1000,))]), {})
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left on device: 4,"):
        file.synchronise()
    file.abandon()
    assert os.listdir(tmp_path) == []
