"""A model in parts (FSDP2, two processes on gloo): the averages of the parts are the parts of the averages."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file

from accelerate_ext.ema import PostHocEMA, list_snapshots
from accelerate_ext.ema.header import SnapshotError
from accelerate_ext.ema.inputs import InputOptions, find_sources
from accelerate_ext.ema.reconstruct import reconstruct

pytestmark = [pytest.mark.processes, pytest.mark.xdist_group("ema-sharded")]

WORKER = Path(__file__).parent / "workers" / "sharded.py"
ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def worker():
    spec = importlib.util.spec_from_file_location("ema_sharded_worker", WORKER)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What two processes left behind."""
    folder = tmp_path_factory.mktemp("sharded")
    environment = {**os.environ, "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    processes = [
        subprocess.Popen(
            [sys.executable, str(WORKER), str(folder)],
            env={**environment, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:  # a busy machine takes minutes; what hangs must not outlive the test
        outputs = [process.communicate(timeout=600)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], "\n".join(outputs)
    return folder


@pytest.fixture(scope="module")
def alone(worker):
    """The same run in one process, and its averages after 20 and 25 steps."""
    model = worker.build()
    ema, kept = PostHocEMA(model), {}
    for step in range(1, 26):
        worker.move(model, step)
        ema.update(step)
        kept[step] = {s: {n: a.clone() for n, a in ema.averages(s).items()} for s in ema.sigma_rel}
    return model, kept


@pytest.fixture
def hf_storage():
    return pytest.importorskip("torch.distributed.checkpoint.hf_storage", reason="this torch has no hf_storage yet")


def told(folder, rank):
    return json.loads((folder / f"told-{rank}.json").read_text())


def read(snapshot):
    reader = snapshot.open()
    try:
        tensors = {}
        for name in reader.names:
            shape = reader.shape(name)
            flat = torch.empty(torch.Size(shape).numel(), dtype=reader.dtype(name))
            reader.read(name, 0, flat.numel(), flat)
            tensors[name] = flat.view(shape)
        return tensors
    finally:
        reader.close()


def test_the_parts_are_uneven_and_one_process_has_nothing_of_some(folder):
    assert told(folder, 0)["parts"]["0.weight"] == [3, 7]
    assert told(folder, 1)["parts"]["0.weight"] == [2, 7]
    assert told(folder, 1)["parts"]["2.weight"] == [0, 5]
    assert told(folder, 0)["run"] == told(folder, 1)["run"]


@pytest.mark.parametrize("kind", ["gathered", "sharded"])
def test_snapshots_have_the_bits_of_one_process(folder, alone, kind):
    model, kept = alone
    found = list_snapshots(folder / kind)
    assert [(snapshot.t, snapshot.sigma_rel) for snapshot in found] == [(20, 0.05), (20, 0.10)]
    for snapshot in found:
        tensors = read(snapshot)
        assert tensors.keys() == model.state_dict().keys()
        for name, average in kept[20][snapshot.sigma_rel].items():
            assert torch.equal(tensors[name], average), name
        for name in ("3.weight", "3.bias", "1.running_mean"):
            assert torch.equal(tensors[name], model.state_dict()[name])


def test_gathered_snapshots_are_one_file_that_loads_as_the_model(folder, worker):
    assert len(list((folder / "gathered").glob("*.safetensors"))) == 2
    worker.build().load_state_dict(load_file(folder / "gathered" / "000000000020-0.050000.safetensors"), strict=True)


def test_sharded_snapshots_are_a_file_a_process_without_doubles(folder, worker):
    files = sorted((folder / "sharded").glob("*0.050000*.safetensors"))
    assert [file.name.split(".", 2)[2] for file in files] == [
        "rank00000-of-00002.safetensors",
        "rank00001-of-00002.safetensors",
    ]
    stored = sum(tensor.numel() for file in files for tensor in load_file(file).values())
    assert stored == sum(tensor.numel() for tensor in worker.build().state_dict().values())


def test_a_set_with_a_file_missing_is_no_snapshot(folder, tmp_path):
    for file in (folder / "sharded").glob("*.safetensors"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "000000000020-0.050000.rank00001-of-00002.safetensors").unlink()
    assert [snapshot.sigma_rel for snapshot in list_snapshots(tmp_path)] == [0.10]


def test_reconstruction_gives_the_same_from_either(folder, tmp_path):
    results = []
    for kind in ("gathered", "sharded"):
        out = tmp_path / kind
        reconstruct(folder / kind, 0.07, output=out / "model.safetensors")
        results.append(load_file(next(out.rglob("*.safetensors"))))
    assert all(torch.equal(results[0][name], results[1][name]) for name in results[0])


def test_torch_distributed_checkpoint_reads_a_sharded_snapshot(folder, alone, worker, tmp_path, hf_storage):
    for file in (folder / "sharded").glob("*0.050000*.safetensors"):
        shutil.copy(file, tmp_path)
    loaded = worker.build().state_dict()
    dcp.load(loaded, storage_reader=hf_storage.HuggingFaceStorageReader(str(tmp_path)), no_dist=True)
    _, kept = alone
    assert all(torch.equal(loaded[name], average) for name, average in kept[20][0.05].items())


def test_plain_checkpoints_in_parts_are_averaged_as_whole_ones(folder, tmp_path, hf_storage):
    for kind in ("parts", "whole"):
        options = InputOptions(subfolder=kind)
        reconstruct(folder / "checkpoints", 0.2, output=tmp_path / f"{kind}.safetensors", options=options, force=True)
    parts, whole = (load_file(tmp_path / f"{kind}.safetensors") for kind in ("parts", "whole"))
    assert parts.keys() == whole.keys()
    assert all(torch.equal(parts[name], whole[name]) for name in whole)


def test_pickled_parts_are_refused_with_what_to_do(folder):
    for options in (None, InputOptions(subfolder="pytorch_model_fsdp_0")):
        with pytest.raises(SnapshotError, match=r"accelerate merge-weights .*step-20.pytorch_model_fsdp_0"):
            find_sources(folder / "pickled", options)


def test_the_state_holds_whole_tensors_and_goes_on_exactly(folder, alone):
    _, kept = alone
    state = torch.load(folder / "state.pt", weights_only=True)
    assert state["averages"][0]["0.weight"].shape == (5, 7)
    for snapshot in list_snapshots(folder / "resumed"):
        for name, average in kept[25][snapshot.sigma_rel].items():
            assert torch.equal(read(snapshot)[name], average), name


def test_averages_are_lent_to_a_model_in_parts(folder, alone):
    _, kept = alone
    lent = torch.load(folder / "lent.pt", weights_only=True)
    assert all(torch.equal(lent[name], average) for name, average in kept[20][0.10].items())
    assert told(folder, 0)["is_restored"]
    assert told(folder, 1)["is_restored"]


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("kind", ["whole", "parts"])
def test_averages_are_copied_to_a_model_that_is_shared_out_in_another_way(folder, alone, rank, kind):
    model, kept = alone
    copied = torch.load(folder / f"copied-{rank}.pt", weights_only=True)[kind]
    frozen = {name: tensor for name, tensor in model.state_dict().items() if name not in kept[20][0.05]}
    assert copied.keys() == model.state_dict().keys()
    assert all(torch.equal(copied[name], tensor) for name, tensor in (frozen | kept[20][0.05]).items())


def test_an_error_of_one_process_is_one_of_all_and_leaves_nothing(folder):
    for rank in range(2):
        assert "snapshots need a folder" in told(folder, rank)["a file in the way"]
        assert "0.weight" in told(folder, rank)["nan, gathered"]
        assert "0.weight" in told(folder, rank)["nan, sharded"]
    assert {snapshot.t for snapshot in list_snapshots(folder / "resumed")} == {25}
    assert list((folder / "nan").iterdir()) == []


@pytest.mark.parametrize("kind", ["gathered", "sharded"])
@pytest.mark.parametrize("folder_name", ["background", "broken"])
def test_snapshots_that_are_not_waited_for_have_the_bits_of_one_process(folder, alone, kind, folder_name):
    _, kept = alone
    found = list_snapshots(folder / f"{folder_name} {kind}")
    assert [(snapshot.t, snapshot.sigma_rel) for snapshot in found] == [(25, 0.05), (25, 0.10)]
    for snapshot in found:
        tensors = read(snapshot)
        assert all(torch.equal(tensors[name], a) for name, a in kept[25][snapshot.sigma_rel].items())


@pytest.mark.parametrize(("kind", "broken"), [("gathered", 0), ("sharded", 1)])
def test_an_error_behind_the_back_of_one_process_is_one_of_all_when_they_meet_and_leaves_nothing(folder, kind, broken):
    for rank in range(2):
        error = told(folder, rank)[f"broken, {kind}"]
        assert error.startswith("OSError" if rank == broken else "RuntimeError: another process could not write")
        assert "Input/output error" in error
        assert "000000000025-0.050000" in error
        assert told(folder, rank)[f"left, {kind}"] == []
