"""Headers of safetensors files: what any of them says, and what files of one run share."""

import json

import pytest
import safetensors.torch
import torch
from safetensors.torch import load_file, save_file

from accelerate_ext.ema import reconstruct
from accelerate_ext.ema.header import SnapshotError, read_header

RECORDS = {
    "b": {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]},
    "a": {"dtype": "F16", "shape": [2, 1], "data_offsets": [0, 4]},
}
METADATA = {"__metadata__": {"t": "7"}}


def write(path, text, num_bytes=12):
    path.write_bytes(len(text.encode()).to_bytes(8, "little") + text.encode() + bytes(num_bytes))
    return path


@pytest.mark.parametrize(
    ("text", "metadata"),
    [
        (json.dumps(METADATA | RECORDS, separators=(",", ":")), {"t": "7"}),
        (json.dumps(METADATA | RECORDS) + "   ", {"t": "7"}),
        (json.dumps(METADATA | RECORDS, indent=1), {"t": "7"}),
        (json.dumps(RECORDS | METADATA), {"t": "7"}),
        (json.dumps(RECORDS), {}),
    ],
)
def test_however_the_json_is_written_it_says_the_same(tmp_path, text, metadata):
    table, found, begin = read_header(write(tmp_path / "a.safetensors", text))
    assert (found, begin, list(table.entries)) == (metadata, 8 + len(text), ["a", "b"])
    assert table.shapes == {"a": (2, 1), "b": (2,)}
    assert table.entries["b"] == (torch.float32, (2,), 4, 12)


def test_a_file_may_hold_no_tensor_at_all(tmp_path):
    for text in ('{"__metadata__":{"t":"7"}}', "{}"):
        table, _, _ = read_header(write(tmp_path / "a.safetensors", text, 0))
        assert (table.entries, table.num_bytes) == ({}, 0)


@pytest.mark.parametrize(
    "text",
    [
        '{"__metadata__":{"t":"7"}',
        '{"__metadata__":{"t":"7"},"a":{}}',
        '{"__metadata__":{"t":"7"};"a":{"dtype":"F16","shape":[2,1],"data_offsets":[0,4]}}',
        '{"__metadata__":7,"a":{"dtype":"F16","shape":[2,1],"data_offsets":[0,4]}}',
        '{"__metadata__":',
        "[]",
        "7",
    ],
)
def test_a_header_that_is_not_safetensors_is_an_error(tmp_path, text):
    with pytest.raises(SnapshotError, match="has a header that is not safetensors"):
        read_header(write(tmp_path / "a.safetensors", text))


def test_a_header_that_is_not_text_is_an_error(tmp_path):
    path = tmp_path / "a.safetensors"
    path.write_bytes((4).to_bytes(8, "little") + b"\xff\xfe{}" + bytes(12))
    with pytest.raises(SnapshotError, match="has a header that is not safetensors"):
        read_header(path)


def test_a_whole_file_with_a_dtype_that_is_not_known_is_not_called_damaged(tmp_path):
    record = {"a": {"dtype": "F4", "shape": [24], "data_offsets": [0, 12]}}
    path = write(tmp_path / "a.safetensors", json.dumps(METADATA | record))
    with pytest.raises(SnapshotError, match=rf"^{path} holds 'F4' tensors, which are not read here; leave it out$"):
        read_header(path)


@pytest.mark.parametrize("dtype", sorted(set(safetensors.torch._TYPES.values()), key=str), ids=str)
def test_what_safetensors_writes_is_read(tmp_path, dtype):
    save_file({"a": torch.zeros(3, dtype=torch.uint8).repeat(dtype.itemsize).view(dtype)}, tmp_path / "a.safetensors")
    assert read_header(tmp_path / "a.safetensors").table.entries["a"].dtype == dtype


def test_files_with_the_same_tensors_share_what_is_known_of_them(tmp_path):
    first, second, other = (tmp_path / name for name in ("1.safetensors", "2.safetensors", "3.safetensors"))
    save_file({"a": torch.zeros(2)}, first, metadata={"t": "1"})
    save_file({"a": torch.ones(2)}, second, metadata={"t": "1000"})
    save_file({"a": torch.ones(3)}, other, metadata={"t": "1"})
    assert read_header(first).table is read_header(second).table
    assert read_header(first).table is not read_header(other).table


def test_a_file_of_another_dtype_goes_together_with_the_others(known_run):
    folder = known_run.save_all(8)
    expected = reconstruct(folder, 0.15, force=True).tensors[0]
    path = sorted(folder.glob("*.safetensors"))[5]
    averages = {name: value.double() for name, value in load_file(path).items() if value.is_floating_point()}
    save_file(load_file(path) | averages, path, metadata=read_header(path).metadata)
    found = reconstruct(folder, 0.15, force=True).tensors[0]
    assert all(torch.allclose(found[name], expected[name], rtol=0, atol=1e-6) for name in expected)
