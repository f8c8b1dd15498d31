"""What can be read: checkpoints of any run, other packages' snapshots, shards, mixtures; and what is refused."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from accelerate_ext.ema import profile
from accelerate_ext.ema.header import SnapshotError
from accelerate_ext.ema.inputs import InputOptions, find_sources
from accelerate_ext.ema.reconstruct import reconstruct

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


# What is refused.


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


def test_a_subfolder_is_not_asked_for_in_snapshots_of_ours(known_run):
    known_run.save_all(4)
    with pytest.raises(SnapshotError, match=r"leave subfolder='unet' \(--subfolder\) out"):
        find_sources(known_run.folder, InputOptions(subfolder="unet"))


def test_no_input_at_all_is_refused():
    with pytest.raises(ValueError, match="give at least one file or folder"):
        find_sources([])
