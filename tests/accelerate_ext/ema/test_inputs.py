"""What can be read: checkpoints of any run, other packages' snapshots, shards, mixtures; and what is refused."""

from __future__ import annotations

import json
import os
import pickle
import re

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from accelerate_ext.checkpoint import StoredCounts
from accelerate_ext.ema import profile, torch_file
from accelerate_ext.ema.header import SnapshotError
from accelerate_ext.ema.inputs import InputOptions, InputWarning, find_sources
from accelerate_ext.ema.readers import FileReader, open_weights
from accelerate_ext.ema.reconstruct import reconstruct
from accelerate_ext.ema.steps import step_from_name

pytestmark = pytest.mark.filterwarnings("ignore::accelerate_ext.ema.result.ReconstructionWarning")

STEPS = range(50, 1601, 50)


def path_average(run, steps, sigma_rel: float) -> dict[str, torch.Tensor]:
    """The average over the straight lines between checkpoints, by summing over every step. Independent of the fit."""
    weights = profile.step_weights(1600, profile.gamma_from_sigma_rel(sigma_rel))
    lines = np.stack(
        [np.interp(np.arange(1, 1601) - 0.5, steps, run.walk[np.array(steps) - 1, i]) for i in range(607)], 1
    )
    return run.tensors(weights @ lines)


def assert_close(got, wanted, atol=2e-6):
    for name, value in wanted.items():
        assert torch.allclose(got[name].double(), value, rtol=0, atol=atol), name


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("checkpoint-500", 500),
        ("step_001000.pt", 1000),
        ("epoch=3-step=1200.ckpt", 1200),
        ("model_v2_700.safetensors", 700),
        ("global_step800", 800),
        ("iter-90-loss-0.25.pth", 90),
        ("model.safetensors", None),
    ],
)
def test_steps_are_read_from_names(tmp_path, name, step):
    assert step_from_name(tmp_path / name) == step


@pytest.mark.parametrize("kind", ["trainer", "files", "pt", "nested", "sharded", "sharded bin", "legacy", "diffusers"])
def test_plain_checkpoints_are_averaged_along_the_path_between_them(known_run, tmp_path, kind):
    root, options = tmp_path / "run", InputOptions(subfolder="unet" if kind == "diffusers" else None)
    root.mkdir()
    for t in STEPS:
        _write_checkpoint(root, kind, t, known_run.model(t))
    got = reconstruct(root, 0.15, options=options)
    assert_close(got.tensors[0], path_average(known_run, STEPS, 0.15))
    assert {source.gamma for source in got.sources} == {profile.RAW}
    assert known_run.error(got.tensors[0], 1600, 0.15) / got.predicted_error[0] == pytest.approx(1, rel=0.3)


def _write_checkpoint(root, kind, t, tensors):
    values = {name: value.float().contiguous() for name, value in tensors.items()}
    folder = root / f"checkpoint-{t}"
    halves = {name: i % 2 for i, name in enumerate(values)}
    if kind in ("trainer", "sharded", "sharded bin"):
        folder.mkdir()
    if kind == "trainer":
        save_file(values, folder / "model.safetensors", metadata={"format": "pt"})
        torch.save({"step": t}, folder / "optimizer.pt")
    elif kind == "diffusers":
        (folder / "unet").mkdir(parents=True)
        save_file(values, folder / "unet" / "diffusion_pytorch_model.safetensors")
    elif kind == "files":
        save_file(values, root / f"weights-step{t}.safetensors")
    elif kind in ("pt", "legacy"):
        torch.save(values, root / f"model_{t}.pt", _use_new_zipfile_serialization=kind == "pt")
    elif kind == "nested":
        wrapped = {
            "epoch": 3,
            "model_state_dict": {f"module._orig_mod.{k}": v for k, v in values.items()},
            "optimizer": {},
        }
        torch.save(wrapped, root / f"ckpt_{t}.pt")
    else:
        stem, save = ("model", save_file) if kind == "sharded" else ("pytorch_model", torch.save)
        ending = "safetensors" if kind == "sharded" else "bin"
        for part in (0, 1):
            save(
                {k: v for k, v in values.items() if halves[k] == part},
                folder / f"{stem}-0000{part + 1}-of-00002.{ending}",
            )
        index = {"weight_map": {k: f"{stem}-0000{part + 1}-of-00002.{ending}" for k, part in halves.items()}}
        (folder / f"{stem}.{ending}.index.json").write_text(json.dumps(index))


def test_the_applied_step_beside_a_checkpoint_goes_before_its_name(known_run, tmp_path):
    folder = tmp_path / "run" / "checkpoint-500"
    folder.mkdir(parents=True)
    save_file(known_run.model(500), folder / "model.safetensors")
    counts = {"attempted_step": 500, "applied_step": 480, "skipped_steps": 20, "skipped_in_a_row": 0}
    stored = {"format": "accelerate_ext.applied_step/1", **counts, "optimizers": [counts]}
    (folder / "applied_step.json").write_text(json.dumps(stored))
    assert [source.t for source in find_sources(tmp_path / "run")] == [480]


@pytest.mark.parametrize("kind", ["mapping", "csv", "csv with a header", "json"])
def test_steps_come_from_a_table(known_run, tmp_path, kind):
    names = {"a.safetensors": 400, "b.safetensors": 1000, "c.safetensors": 1600}
    (tmp_path / "run").mkdir()
    for name, t in names.items():
        save_file(known_run.model(t), tmp_path / "run" / name)
    table = tmp_path / ("steps.json" if kind == "json" else "steps.csv")
    head = "file,step\n" if "header" in kind else ""
    table.write_text(json.dumps(names) if kind == "json" else head + "".join(f"{n},{t}\n" for n, t in names.items()))
    options = InputOptions(steps=names if kind == "mapping" else table)
    assert [source.t for source in find_sources(tmp_path / "run", options)] == [400, 1000, 1600]
    with pytest.raises(
        SnapshotError, match=r"c\.safetensors is not in the table of steps; .* It lists: a\.safetensors"
    ):
        find_sources(tmp_path / "run", InputOptions(steps={"a.safetensors": 1, "b.safetensors": 2}))
    table.write_text("a.safetensors\n")
    with pytest.raises(SnapshotError, match="must list names and steps"):
        find_sources(tmp_path / "run", InputOptions(steps=table))


def test_snapshots_and_checkpoints_mix(known_run, tmp_path):
    known_run.save_all(8, (0.10,))
    (tmp_path / "run").mkdir()
    for t in STEPS:
        torch.save(known_run.model(t), tmp_path / "run" / f"model-{t}.pt")
    alone = reconstruct(known_run.folder, 0.05, force=True)
    mixed = reconstruct([known_run.folder, tmp_path / "run"], 0.05)
    assert mixed.predicted_error[0] < 0.7 * alone.predicted_error[0]
    error = known_run.error(mixed.tensors[0], 1600, 0.05)
    assert 0.5 < error / mixed.predicted_error[0] < 2
    assert {source.kind for source in mixed.sources} == {"snapshot", "checkpoint"}
    assert mixed.tensors[0]["steps_seen"] == 1600


def test_a_tied_parameter_may_be_missing_from_snapshots(known_run, tmp_path):
    for t in (800, 1600):
        known_run.save(t, 0.10, tied=json.dumps({"head.weight": "embed.weight"}))
    model = known_run.model(1200)
    torch.save({**model, "head.weight": model["embed.weight"]}, tmp_path / "model_1200.pt")
    got = reconstruct(
        [known_run.folder, tmp_path / "model_1200.pt"], 0.10, output=tmp_path / "out.safetensors", force=True
    )
    assert "head.weight" not in load_file(got.paths[0])


# Snapshots of other packages, as those packages write them.


def _kept_by_peer(walk, gamma: float, every: int) -> dict[int, np.ndarray]:
    """What ema-pytorch keeps: the beta of one step at every ``every``-th step, counted from the first."""
    kept, at = walk[0].copy(), {}
    for n in range(1, len(walk) + 1):
        if (n - 1) % every == 0:
            kept += (1 - (1 - 1 / (n + 1)) ** (1 + gamma)) * (walk[n - 1] - kept)
        at[n] = kept.copy()
    return at


@pytest.mark.parametrize("package", ["ema-pytorch", "pytorch-posthoc-ema"])
@pytest.mark.parametrize(("every", "bar"), [(1, 0.01), (10, 0.05)])
def test_snapshots_of_other_packages_are_taken_for_what_they_hold(known_run, tmp_path, package, every, bar):
    widths, root = (0.05, 0.10), tmp_path / "other"
    root.mkdir()
    for index, width in enumerate(widths):
        at = _kept_by_peer(known_run.walk, profile.gamma_from_sigma_rel(width), every)
        for t in STEPS:
            values = known_run.tensors(at[t])
            prefix = "ema_model." if package == "ema-pytorch" else ""
            state = {prefix + k: v.float() for k, v in values.items()}
            state |= {"initted": torch.tensor(True), "step": torch.tensor(t)}
            torch.save(state, root / f"{index}.{t}.pt")
    got = reconstruct(root, 0.15, options=InputOptions(sigma_rel=widths, update_every=every))
    assert set(got.tensors[0]) == set(known_run.model(1))
    assert known_run.error(got.tensors[0], 1600, 0.15) < bar


def test_other_packages_step_labels_choose_the_step(known_run, tmp_path):
    for t in (800, 1600):
        torch.save(
            {**known_run.model(t), "initted": torch.tensor(True), "step": torch.tensor(t - 99)}, tmp_path / f"0.{t}.pt"
        )
    options = InputOptions(sigma_rel=[0.10], update_every=1)
    assert [source.t for source in find_sources(tmp_path, options)] == [702, 1502]
    assert reconstruct(tmp_path, 0.10, step=800, options=options, force=True).step == 800


def test_other_packages_need_their_widths_and_interval(tmp_path):
    torch.save({"initted": torch.tensor(True), "step": torch.tensor(9), "w": torch.ones(2)}, tmp_path / "1.9.pt")
    for options in (InputOptions(), InputOptions(sigma_rel=[0.1, 0.2]), InputOptions(sigma_rel=[0.1], update_every=1)):
        with pytest.raises(SnapshotError, match=r"1\.9\.pt is a snapshot of ema-pytorch .* one for each of 0\.\.1"):
            find_sources(tmp_path, options)
    with pytest.raises(ValueError, match="`update_every` must be 1 or more"):
        find_sources(tmp_path, InputOptions(sigma_rel=[0.1, 0.2], update_every=0))


# Sharded snapshots: the parts that ranks wrote, put together.


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


# What is refused.


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


def test_weights_one_level_deeper_are_named_for_the_choice(tmp_path, known_run):
    for name in ("unet", "unet_ema"):
        (tmp_path / "checkpoint-500" / name).mkdir(parents=True)
        save_file(known_run.model(500), tmp_path / "checkpoint-500" / name / "diffusion_pytorch_model.safetensors")
    with pytest.raises(SnapshotError, match=r"say which .* \(subfolder=, --subfolder\): unet, unet_ema$"):
        find_sources(tmp_path)
    with pytest.raises(SnapshotError, match=r"say which .*: unet, unet_ema$"):
        find_sources(tmp_path, InputOptions(subfolder="vae"))


def test_a_folder_that_is_not_ours_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("nothing")
    with pytest.raises(SnapshotError, match="is not a folder of snapshots or checkpoints"):
        find_sources(tmp_path)
    with pytest.raises(FileNotFoundError, match="there is no file or folder"):
        find_sources(tmp_path / "missing")


def test_a_checkpoint_without_a_step_and_a_part_alone_are_refused(known_run, tmp_path):
    save_file(known_run.model(1), tmp_path / "model-00001-of-00002.safetensors")
    with pytest.raises(SnapshotError, match="is one part of a checkpoint"):
        find_sources(tmp_path / "model-00001-of-00002.safetensors")
    save_file(known_run.model(1), tmp_path / "weights.safetensors")
    with pytest.raises(SnapshotError, match="has no step above 0 in its name; move it away, or give a table"):
        find_sources(tmp_path / "weights.safetensors")


def test_an_index_that_lists_missing_files_is_refused(tmp_path):
    (tmp_path / "checkpoint-5").mkdir()
    index = tmp_path / "checkpoint-5" / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"w": "model-00001-of-00001.safetensors"}}))
    with pytest.raises(SnapshotError, match=r"lists files that are missing: .*model-00001-of-00001"):
        reconstruct(tmp_path, 0.10)
    index.write_text("{}")
    with pytest.raises(SnapshotError, match="must be JSON with a `weight_map`"):
        reconstruct(tmp_path, 0.10)


def test_images_and_updates_do_not_mix_without_a_table(known_run, tmp_path):
    known_run.save(1600, 0.10, unit="images")
    save_file(known_run.model(1000), tmp_path / "step1000.safetensors")
    with pytest.raises(SnapshotError, match=r"must count the same thing, found updates .* images"):
        find_sources([known_run.folder, tmp_path / "step1000.safetensors"])
    both = find_sources(
        [known_run.folder, tmp_path / "step1000.safetensors"], InputOptions(steps={"step1000.safetensors": 1500})
    )
    assert [source.t for source in both] == [1500, 1600]


def test_one_of_two_runs_can_be_chosen(known_run):
    known_run.save_all(4)
    known_run.save(900, 0.05, run="run-2")
    assert {source.run for source in find_sources(known_run.folder, InputOptions(run="run-2"))} == {"run-2"}
    with pytest.raises(SnapshotError, match="no snapshot of the run 'run-3'; it has: run-1, run-2"):
        find_sources(known_run.folder, InputOptions(run="run-3"))


def test_the_profile_fit_does_not_take_checkpoints(known_run, tmp_path):
    torch.save(known_run.model(100), tmp_path / "model_100.pt")
    with pytest.raises(ValueError, match="use fit='walk'"):
        reconstruct(tmp_path / "model_100.pt", 0.10, fit="profile")


# Reading without holding.


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


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("t.csv", "", ": it lists no step$"),
        ("t.csv", "name,step\n", ": it lists no step$"),
        ("t.json", "{}", ": it lists no step$"),
        ("t.json", '{"model-100.safetensors": NaN}', "'model-100.safetensors' must be .* above 0, got nan"),
        ("t.csv", "model-100.safetensors,-5\n", "'model-100.safetensors' must be .* above 0, got -5"),
        ("t.csv", "model-100.safetensors,1\nmodel-100.safetensors,2\n", "'model-100.safetensors' twice"),
        ("t.json", '{"model-100.safetensors": 1, "model-100.safetensors": 2}', "'model-100.safetensors' twice"),
        ("t.json", '{"model-100.safetensors": null}', "must list names and steps"),
    ],
)
def test_a_table_that_tells_no_steps_is_refused_by_name(known_run, tmp_path, name, text, message):
    checkpoints = tmp_path / "checkpoints"
    checkpoints.mkdir()
    save_file(known_run.model(100), checkpoints / "model-100.safetensors")
    (tmp_path / name).write_text(text)
    with pytest.raises(SnapshotError, match=rf"t\.\w+.*{message}"):
        find_sources(checkpoints, InputOptions(steps=tmp_path / name))


@pytest.mark.parametrize("step", [0, float("inf"), "many", None])
def test_a_mapping_of_steps_is_held_to_the_same(known_run, tmp_path, step):
    save_file(known_run.model(100), tmp_path / "model-100.safetensors")
    with pytest.raises(SnapshotError, match=r"`steps` must say .* must be a finite number above 0"):
        find_sources(tmp_path, InputOptions(steps={"model-100.safetensors": step}))


def test_a_table_says_everything_that_is_wrong_with_it(known_run, tmp_path):
    save_file(known_run.model(100), tmp_path / "a-100.safetensors")
    (tmp_path / "t.csv").write_text("a,1\na,2\nb,-5\n")
    with pytest.raises(SnapshotError) as refused:
        find_sources(tmp_path, InputOptions(steps=tmp_path / "t.csv"))
    assert str(refused.value) == (
        f"{tmp_path / 't.csv'} must say the applied step of each checkpoint: it lists 'a' twice; "
        "the step of 'b' must be a finite number above 0, got -5.0"
    )


def test_a_subfolder_is_not_asked_for_in_snapshots_of_ours(known_run):
    known_run.save_all(4)
    with pytest.raises(SnapshotError, match=r"leave subfolder='unet' \(--subfolder\) out"):
        find_sources(known_run.folder, InputOptions(subfolder="unet"))


def test_what_to_add_to_a_table_is_shown(known_run, tmp_path):
    for name in ("ckpt-10.pt", "final.pt"):
        torch.save(known_run.model(1), tmp_path / name)
    with pytest.raises(SnapshotError, match=r"as `final\.pt,10000`; in Python steps=\{'final\.pt': 10000"):
        find_sources(tmp_path)


def test_a_long_table_is_told_by_its_first_ten_names(known_run, tmp_path):
    save_file(known_run.model(100), tmp_path / "other.safetensors")
    with pytest.raises(
        SnapshotError, match=r"add it or move it away\. It lists: a0, a1, a2, a3, a4, a5, a6, a7, a8, a9$"
    ):
        find_sources(tmp_path, InputOptions(steps={f"a{index}": index + 1 for index in range(12)}))


@pytest.mark.parametrize("by", ["what is listed", "the weights in it"])
def test_a_table_may_name_checkpoints_by_their_paths(known_run, tmp_path, by):
    folders = [tmp_path / run / "checkpoint" for run in "ab"]
    for t, folder in zip((800, 1600), folders, strict=True):
        folder.mkdir(parents=True)
        save_file(known_run.model(t), folder / "model.safetensors")
    paths = folders if by == "what is listed" else [folder / "model.safetensors" for folder in folders]
    found = find_sources(folders, InputOptions(steps={str(paths[0]): 800, str(paths[1]): 1600}))
    assert [source.t for source in found] == [800, 1600]


def test_a_table_may_begin_with_the_mark_of_a_spreadsheet(known_run, tmp_path):
    save_file(known_run.model(100), tmp_path / "model-100.safetensors")
    table = tmp_path / "steps.csv"
    table.write_text("model-100.safetensors,7\n", encoding="utf-8-sig")
    assert [source.t for source in find_sources(tmp_path / "model-100.safetensors", InputOptions(steps=table))] == [7]


def test_no_input_at_all_is_refused():
    with pytest.raises(ValueError, match="give at least one file or folder"):
        find_sources([])


def test_a_checkpoint_before_the_first_applied_update_is_refused_by_name(known_run, tmp_path):
    save_file(known_run.model(100), tmp_path / "model.safetensors")
    StoredCounts({"attempted": 3, "applied": 0, "skipped": 3, "skipped_in_a_row": 3}).write(tmp_path)
    with pytest.raises(SnapshotError, match=f"{re.escape(str(tmp_path))}.*no update was applied"):
        find_sources(tmp_path)


def test_a_folder_of_parts_only_says_what_is_missing(known_run):
    _split(known_run.save(1500, 0.10), 0)
    next(known_run.folder.glob("*rank00001*")).unlink()
    with (
        pytest.warns(InputWarning, match="left out"),
        pytest.raises(SnapshotError, match="holds no whole snapshot; files of other ranks are missing"),
    ):
        find_sources(known_run.folder)
