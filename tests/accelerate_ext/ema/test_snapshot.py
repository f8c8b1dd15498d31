"""Reading snapshot files: what a header says, and files that are not what they should be."""

import json

import pytest
import torch
from safetensors.torch import save_file

from accelerate_ext.ema import Snapshot, SnapshotError, list_snapshots
from accelerate_ext.ema.header import read_header

METADATA = {
    "format": "pt",
    "snapshot_format": "accelerate_ext.ema/1",
    "t": "1000",
    "unit": "updates",
    "step": "1000",
    "sigma_rel": "0.050000000000000003",
    "gamma": "16.972198602303450",
    "run": "a",
    "parameter_set": "b",
    "dtype": "float32",
    "rounding_error": "0",
    "copied": '["count"]',
    "tied": "{}",
}
NAME = "000000001000-0.050000.safetensors"


def save(folder, name=NAME, **changes):
    metadata = {key: value for key, value in (METADATA | changes).items() if value is not None}
    tensors = {"weight": torch.randn(3, 4), "count": torch.tensor(5)}
    save_file(tensors, folder / name, metadata)
    return folder / name, tensors


def test_a_snapshot_is_what_its_header_states(tmp_path):
    path, tensors = save(tmp_path)
    snapshot = Snapshot.read(path)
    assert (snapshot.t, snapshot.sigma_rel, snapshot.gamma) == (1000, 0.05, 16.97219860230345)
    assert (snapshot.unit, snapshot.copied, snapshot.paths) == ("updates", {"count"}, (path,))
    reader, out = snapshot.open(), torch.empty(12)
    reader.read("weight", 0, 12, out)
    reader.close()
    assert torch.equal(out.view(3, 4), tensors["weight"])


def test_a_folder_lists_its_snapshots_by_time_and_width_and_nothing_else(tmp_path):
    for t, sigma_rel in ((9, 0.1), (100, 0.05), (9, 0.05)):
        save(tmp_path, f"{t:012d}-{sigma_rel:.6f}.safetensors", t=str(t), sigma_rel=str(sigma_rel))
    (tmp_path / "model.safetensors").write_bytes(b"")
    (tmp_path / ".000000000009-0.100000.safetensors.1.tmp").write_bytes(b"")
    (tmp_path / "set-aside").mkdir()
    found = [(snapshot.t, snapshot.sigma_rel) for snapshot in list_snapshots(tmp_path)]
    assert found == [(9, 0.05), (9, 0.1), (100, 0.05)]


def test_a_folder_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        list_snapshots(tmp_path / "nothing")


@pytest.mark.parametrize("size", [0, 4, 7, 8, 100, -1])
def test_a_file_that_is_cut_short_is_an_error_that_names_it(tmp_path, size):
    path, _ = save(tmp_path)
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(SnapshotError, match=f"{path} .*(cut short|not safetensors)"):
        list_snapshots(tmp_path)


def test_a_file_that_is_too_long_is_an_error(tmp_path):
    path, _ = save(tmp_path)
    path.write_bytes(path.read_bytes() + b"more")
    with pytest.raises(SnapshotError, match=r"must be .* bytes long by its header"):
        Snapshot.read(path)


@pytest.mark.parametrize(
    "content", [b"\x80\x02}q\x00.", b"{}" * 20, b"\xff" * 64, b"\x10" + bytes(7) + b"[1, 2, 3, 4, 5]" * 4]
)
def test_a_file_of_another_kind_is_an_error(tmp_path, content):
    path = tmp_path / NAME
    path.write_bytes(content)
    with pytest.raises(SnapshotError, match=str(path)):
        Snapshot.read(path)


def test_a_model_file_that_is_no_snapshot_is_an_error(tmp_path):
    path, _ = save(tmp_path, snapshot_format=None)
    with pytest.raises(SnapshotError, match=r"must have 'accelerate_ext.ema/1' as snapshot_format .* found 'none'"):
        Snapshot.read(path)


@pytest.mark.parametrize(
    "key", ["t", "gamma", "sigma_rel", "run", "parameter_set", "dtype", "rounding_error", "copied"]
)
def test_metadata_that_is_missing_is_an_error_that_names_it(tmp_path, key):
    path, _ = save(tmp_path, **{key: None})
    with pytest.raises(SnapshotError, match=f"{path} lacks or garbles the metadata entry '{key}'"):
        Snapshot.read(path)


def test_metadata_that_is_no_number_is_an_error(tmp_path):
    path, _ = save(tmp_path, t="soon")
    with pytest.raises(SnapshotError, match="lacks or garbles"):
        Snapshot.read(path)


@pytest.mark.parametrize(
    "record",
    [
        {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]},
        {"shape": [1], "data_offsets": [0, 4]},
    ],
)
def test_a_header_whose_numbers_do_not_agree_is_an_error(tmp_path, record):
    header = json.dumps({"weight": record}).encode()
    path = tmp_path / NAME
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    with pytest.raises(SnapshotError, match="has a header that is not safetensors"):
        read_header(path)


def test_one_part_without_the_others_is_an_error_that_names_them(tmp_path):
    path, _ = save(tmp_path, "000000001000-0.050000.rank00000-of-00002.safetensors")
    with pytest.raises(SnapshotError, match=r"also needed: .*rank00001-of-00002"):
        Snapshot.read(path)
    assert list_snapshots(tmp_path) == []
