"""Reading `.pt` files: tensors only, piece by piece, given back to the system as they are read."""

import os
import pickle

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from accelerate_ext.ema import torch_file
from accelerate_ext.ema.header import SnapshotError
from accelerate_ext.ema.readers import open_weights
from accelerate_ext.ema.reconstruct import reconstruct
from accelerate_ext.ema.torch_file import TorchReader


class Elements(TorchDispatchMode):
    """Counts the elements that operations write."""

    def __init__(self):
        super().__init__()
        self.written = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func in (torch.ops.aten.clone.default, torch.ops.aten.copy_.default):
            self.written += result.numel()
        return result


def test_a_tensor_whose_memory_has_another_order_is_put_in_order_once(tmp_path):
    weight = torch.randn(64, 32, 3, 3).to(memory_format=torch.channels_last)
    torch.save({"weight": weight, "turned": torch.randn(50, 40).T, "plain": torch.randn(7)}, tmp_path / "model.pt")
    reader, size = TorchReader(tmp_path / "model.pt"), weight.numel()
    got = torch.empty(size, dtype=torch.float64)
    with Elements() as elements:
        for start in range(0, size, 1000):
            reader.read("weight", start, min(size, start + 1000), got[start : start + 1000])
    assert torch.equal(got, weight.reshape(-1).double())
    assert elements.written == 2 * size
    for name in ("turned", "plain", "weight"):
        stored = torch.load(tmp_path / "model.pt", weights_only=True)[name].reshape(-1)
        out = torch.empty(stored.numel())
        reader.read(name, 0, stored.numel(), out)
        assert torch.equal(out, stored)
    reader.close()


class Malicious:
    def __reduce__(self):
        return os.system, ("touch executed",)


@pytest.mark.parametrize("new_format", [True, False])
def test_a_pt_file_that_would_run_code_is_refused_and_does_not_run_it(tmp_path, monkeypatch, new_format):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "model_100.pt"
    torch.save({"w": torch.ones(3), "evil": Malicious()}, path, _use_new_zipfile_serialization=new_format)
    with pytest.raises(SnapshotError, match=r"model_100\.pt holds more than tensors and plain values.*refused"):
        reconstruct(path, 0.10)
    assert not (tmp_path / "executed").exists()


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_a_bare_pickle_is_refused_and_not_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model_100.pt").write_bytes(pickle.dumps(Malicious()))
    with pytest.raises(SnapshotError, match=r"model_100\.pt"):
        reconstruct(tmp_path / "model_100.pt", 0.10)
    assert not (tmp_path / "executed").exists()


def test_a_truncated_pt_file_is_refused_by_name(known_run, tmp_path):
    path = tmp_path / "model_100.pt"
    torch.save(known_run.model(100), path)
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(SnapshotError, match=r"model_100\.pt"):
        reconstruct(path, 0.10)


def test_a_pt_file_without_weights_says_what_it_has_and_takes_a_key(known_run, tmp_path):
    path = tmp_path / "model_100.pt"
    torch.save({"ema": {"shadow": known_run.model(100)}, "epoch": 3}, path)
    with pytest.raises(SnapshotError, match=r"say under which key, it has: ema, epoch"):
        open_weights(path)
    with pytest.raises(SnapshotError, match=r"has no 'ema\.wrong'; at that level it has: shadow"):
        open_weights(path, "ema.wrong")
    assert open_weights(path, "ema.shadow").shape("layer.bias") == (9,)


def test_mapped_files_are_given_back_while_they_are_read(tmp_path, monkeypatch):
    path = tmp_path / "model_1.pt"
    torch.save({"w": torch.arange(2_000_000, dtype=torch.float32)}, path)
    given_back, libc = [], torch_file._LIBC

    class Counting:
        @staticmethod
        def madvise(start, length, advice):
            given_back.append(length.value)
            return libc.madvise(start, length, advice)

    monkeypatch.setattr(torch_file, "_LIBC", Counting)
    reader, out = open_weights(path), torch.empty(50_000)
    for start in range(0, 2_000_000, 50_000):
        reader.read("w", start, start + 50_000, out)
        assert out[0] == start and out[-1] == start + 49_999
    assert len(given_back) >= 10 and set(given_back) == {-(-path.stat().st_size // 4096) * 4096}


def test_memory_that_is_not_a_mapped_file_is_never_given_back(tmp_path, monkeypatch):
    path = tmp_path / "model_1.pt"
    torch.save({"w": torch.arange(2_000_000, dtype=torch.float32)}, path, _use_new_zipfile_serialization=False)
    monkeypatch.setattr(torch_file._Mapped, "EVERY", 0)
    reader, out = open_weights(path), torch.empty(2_000_000)
    for _ in range(2):
        reader.read("w", 0, 2_000_000, out)
        assert torch.equal(out, torch.arange(2_000_000, dtype=torch.float32))
