"""Sets of files that together hold a model: the parts that ranks wrote, put together."""

from __future__ import annotations

import json
import os

import pytest
import torch
from safetensors.torch import load_file, save_file

from accelerate_ext.ema.header import SnapshotError
from accelerate_ext.ema.inputs import InputWarning, find_sources
from accelerate_ext.ema.readers import FileReader
from accelerate_ext.ema.reconstruct import reconstruct

pytestmark = pytest.mark.filterwarnings("ignore::accelerate_ext.ema.result.ReconstructionWarning")


@pytest.mark.parametrize("dim", [0, 1])
def test_shards_give_the_same_as_whole_tensors(known_run, tmp_path, dim):
    whole = reconstruct(known_run.save_all(4), 0.15, force=True).tensors[0]
    for path in list(known_run.folder.iterdir()):
        _split(path, dim)
    got = reconstruct(known_run.folder, 0.15, force=True)
    assert len(got.sources) == 8 and len(got.sources[0].files) == 3
    assert all(torch.equal(got.tensors[0][name], whole[name]) for name in whole)


def _split(path, dim: int, ranks: int = 3) -> None:
    """Rewrites a snapshot as the uneven shards of three ranks; the last holds nothing of small tensors."""
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    values = load_file(path)
    path.unlink()
    for rank in range(ranks):
        part, info = {}, {}
        for name, value in values.items():
            if value.dim() <= dim:
                if rank == 0:
                    part[name], info[name] = value, {"saved_offsets": [0] * value.dim()}
                continue
            size = -(-value.shape[dim] // ranks)
            first = min(rank * size, value.shape[dim])
            part[name] = value.narrow(dim, first, min(size, value.shape[dim] - first)).contiguous()
            offset = [0] * value.dim()
            offset[dim] = first
            info[name] = {"saved_offsets": offset}
        target = path.with_name(f"{path.name.removesuffix('.safetensors')}.rank{rank:05d}-of-{ranks:05d}.safetensors")
        save_file(part, target, metadata=metadata | {"DCP_SHARDING_INFO": json.dumps(info)})


def test_a_snapshot_that_lacks_files_of_some_ranks_is_left_out_and_named(known_run):
    known_run.save_all(4)
    _split(known_run.save(1500, 0.10), 0)
    next(known_run.folder.glob("*rank00001*")).unlink()
    with pytest.warns(InputWarning, match=r"left out, .*000000001500-0\.100000\.rank00000-of-00003"):
        assert len(find_sources(known_run.folder)) == 8


def test_a_shard_that_is_shorter_than_it_says_is_refused(known_run):
    path = known_run.save(800, 0.10)
    _split(path, 0)
    shard = next(known_run.folder.glob("*rank00001*"))
    shard.unlink()
    os.link(next(known_run.folder.glob("*rank00002*")), shard)
    with pytest.raises(SnapshotError, match=r"needs \d+ elements, its files hold"):
        reconstruct(known_run.folder, 0.10)


@pytest.mark.parametrize(
    ("info", "message"),
    [
        ("{", "says no offsets"),
        ('{"w": {}}', "says no offsets"),
        ('{"w": {"saved_offsets": ["a"]}}', "says no offsets"),
        ('{"w": {"saved_offsets": [0, 0]}}', "1 dimensions, 2 offsets"),
    ],
)
def test_parts_that_do_not_say_where_they_belong_are_refused(tmp_path, info, message):
    folder = tmp_path / "checkpoint-7"
    folder.mkdir()
    file = folder / "shard-00001-model-00001-of-00001.safetensors"
    save_file({"w": torch.ones(3)}, file, metadata={"DCP_SHARDING_INFO": info})
    with pytest.raises(SnapshotError, match=rf"shard-00001-model-00001-of-00001\.safetensors.*{message}"):
        find_sources(folder)[0].open()


def test_an_index_that_lists_missing_files_is_refused(tmp_path):
    (tmp_path / "checkpoint-5").mkdir()
    index = tmp_path / "checkpoint-5" / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"w": "model-00001-of-00001.safetensors"}}))
    with pytest.raises(SnapshotError, match=r"lists files that are missing: .*model-00001-of-00001"):
        reconstruct(tmp_path, 0.10)
    index.write_text("{}")
    with pytest.raises(SnapshotError, match="must be JSON with a `weight_map`"):
        reconstruct(tmp_path, 0.10)


def test_parts_of_a_tensor_are_read_across_shards(known_run):
    path = known_run.save(800, 0.10)
    whole = load_file(path)["layer.weight"].reshape(-1)
    _split(path, 1)
    reader = FileReader(tuple(sorted(known_run.folder.iterdir())))
    for start, stop in ((0, 297), (5, 6), (8, 31), (100, 297)):
        out = torch.empty(stop - start)
        reader.read("layer.weight", start, stop, out)
        assert torch.equal(out, whole[start:stop])
    reader.close()


def test_a_folder_of_parts_only_says_what_is_missing(known_run):
    _split(known_run.save(1500, 0.10), 0)
    next(known_run.folder.glob("*rank00001*")).unlink()
    with (
        pytest.warns(InputWarning, match="left out"),
        pytest.raises(SnapshotError, match="holds no whole snapshot; files of other ranks are missing"),
    ):
        find_sources(known_run.folder)
