"""Reconstructed averages against the ones that the run would have kept, and what happens to bad input."""

from __future__ import annotations

import errno
import json
import os
import shutil
import warnings

import pytest
import safetensors.torch
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from accelerate_ext.ema import PostHocEMA, header, readers, snapshot, stream, tensor_file
from accelerate_ext.ema.check import check
from accelerate_ext.ema.header import SnapshotError
from accelerate_ext.ema.reconstruct import reconstruct
from accelerate_ext.ema.result import ReconstructionError, ReconstructionWarning


@pytest.mark.parametrize("fit", ["walk", "profile"])
def test_the_error_is_what_was_predicted(known_run, fit):
    widths = [0.03, 0.075, 0.15, 0.2]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ReconstructionWarning)
        got = reconstruct(known_run.save_all(16), widths, fit=fit, force=True)
    for width, tensors, predicted in zip(widths, got.tensors, got.predicted_error, strict=True):
        assert 0.5 < known_run.error(tensors, 1600, width) / predicted < 2


@pytest.mark.parametrize(
    ("stored", "width", "bar"),
    [
        ((0.05, 0.10), 0.02, 1.5e-2),
        ((0.05, 0.10), 0.075, 2e-4),
        ((0.05, 0.10), 0.15, 2e-4),
        ((0.05, 0.10), 0.20, 2e-4),
        ((0.05, 0.10), 0.25, 1e-3),
        ((0.05,), 0.075, 8e-3),
        ((0.05,), 0.15, 8e-3),
        ((0.05,), 0.25, 8e-3),
    ],
)
def test_32_snapshots_of_a_random_walk_give_the_average_that_was_not_kept(known_run, stored, width, bar):
    got = reconstruct(known_run.save_all(32, stored), width)
    assert known_run.error(got.tensors[0], 1600, width) < bar
    assert got.effective_sigma_rel[0] == pytest.approx(width, rel=0.02)


def test_squared_error_falls_at_least_as_the_fourth_power_of_the_number_of_snapshots(known_run):
    errors = []
    for count in (8, 32):
        shutil.rmtree(known_run.folder, ignore_errors=True)
        got = reconstruct(known_run.save_all(count), 0.15)
        errors.append(known_run.error(got.tensors[0], 1600, 0.15))
    assert (errors[0] / errors[1]) ** 2 > 4**4


def test_a_stored_average_comes_back_bit_for_bit(known_run):
    path = known_run.save_all(8) / "000000000800-0.100000.safetensors"
    got = reconstruct(known_run.folder, [0.10, 0.05], step=800)
    stored = load_file(path)
    assert all(torch.equal(got.tensors[0][name], stored[name]) for name in stored)
    assert max(got.predicted_error) < 1e-5  # rounding to float32 is all that is left


def test_the_result_is_the_weighted_sum_in_float64_to_a_few_float32_roundings(known_run):
    got = reconstruct(known_run.save_all(16), 0.15)
    stored = [load_file(source.path) for source in got.sources]
    for name, values in got.tensors[0].items():
        if values.is_floating_point():
            exact = sum(float(w) * s[name].double() for w, s in zip(got.weights[:, 0], stored, strict=True))
            assert torch.allclose(values.double(), exact, rtol=7e-8, atol=2e-8)


def test_snapshots_that_are_written_later_do_not_change_an_earlier_result(known_run):
    known_run.save_all(16)
    whole = reconstruct(known_run.folder, 0.15, step=800)
    for path in known_run.folder.glob("*.safetensors"):
        if int(path.name[:12]) > 800:
            path.unlink()
    assert torch.equal(
        reconstruct(known_run.folder, 0.15).tensors[0]["layer.weight"], whole.tensors[0]["layer.weight"]
    )


def test_a_step_between_snapshots_is_possible(known_run):
    got = reconstruct(known_run.save_all(32), 0.10, step=1475)
    assert known_run.error(got.tensors[0], 1475, 0.10) < 0.05
    assert got.step == 1475


def test_pieces_of_any_size_and_any_number_of_workers_give_the_same(known_run, monkeypatch):
    one = reconstruct(known_run.save_all(8), [0.075, 0.15], workers=1)
    monkeypatch.setattr(stream, "BLOCK_BYTES", 1)
    monkeypatch.setattr(stream.Sums, "run", _in_pieces_of(41, stream.Sums.run))
    many = reconstruct(known_run.folder, [0.075, 0.15], workers=3)
    for a, b in zip(one.tensors, many.tensors, strict=True):
        assert all(torch.allclose(a[name], b[name], rtol=0, atol=6e-8) for name in a)


def _in_pieces_of(length, run):
    def short(self, *arguments):
        self._length = length
        return run(self, *arguments)

    return short


def test_every_header_is_read_once(known_run, monkeypatch):
    folder, read, original = known_run.save_all(8), [], header.read_header
    for module in (readers, snapshot):
        monkeypatch.setattr(module, "read_header", lambda path: read.append(path) or original(path))
    reconstruct(folder, 0.15)
    assert sorted(read) == sorted(folder.glob("*.safetensors"))


def test_every_stored_value_is_read_once_for_all_wanted_averages(known_run, monkeypatch):
    read, original = [], readers._read_at
    monkeypatch.setattr(readers, "_read_at", lambda d, b, at: read.append(len(b)) or original(d, b, at))
    dry = reconstruct(known_run.save_all(8), [0.06, 0.075, 0.15], dry_run=True, force=True)
    samples = sum(read)
    read.clear()
    reconstruct(known_run.folder, [0.06, 0.075, 0.15], force=True)
    counter = 8  # the one int64 that is copied, once
    assert sum(read) - samples == dry.read_bytes + counter == 16 * 607 * 4 + counter


def test_patterns_give_tensors_their_own_width(known_run):
    got = reconstruct(known_run.save_all(16), [0.075, 0.15], widths={"layer.*": 0.10})
    plain = reconstruct(known_run.folder, [0.075, 0.10, 0.15])
    for name in ("layer.weight", "layer.bias"):
        assert all(torch.equal(tensors[name], plain.tensors[1][name]) for tensors in got.tensors)
    assert torch.allclose(got.tensors[0]["embed.weight"], plain.tensors[0]["embed.weight"], atol=1e-7)
    assert torch.allclose(got.tensors[1]["embed.weight"], plain.tensors[2]["embed.weight"], atol=1e-7)
    assert got.width_errors["layer.*"] < 1e-5
    with pytest.raises(ValueError, match=r"no tensor matches 'head\.\*'; names are like embed\.weight"):
        reconstruct(known_run.folder, 0.15, widths={"head.*": 0.1})


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
def test_output_has_the_dtype_that_was_asked_for_and_integers_as_they_were(known_run, tmp_path, dtype):
    target = tmp_path / "out" / "model.safetensors"
    got = reconstruct(known_run.save_all(8), 0.15, output=target, dtype=dtype)
    assert got.paths == (target,)
    values = load_file(target)
    assert set(values) == {"embed.weight", "layer.weight", "layer.bias", "scale", "steps_seen"}
    assert values["layer.weight"].dtype == getattr(torch, dtype) and values["steps_seen"] == 1600
    in_memory = reconstruct(known_run.folder, 0.15, dtype=dtype).tensors[0]
    assert all(torch.equal(values[name], in_memory[name]) for name in values)
    assert os.listdir(target.parent) == ["model.safetensors"]


def test_output_says_what_it_is(known_run, tmp_path):
    reconstruct(known_run.save_all(8), [0.075, 0.15], output=tmp_path / "out")
    names = sorted(os.listdir(tmp_path / "out"))
    assert names == [
        "reconstructed-000000001600-0.075000.safetensors",
        "reconstructed-000000001600-0.150000.safetensors",
    ]
    with safe_open(tmp_path / "out" / names[1], "pt") as file:
        said = json.loads(file.metadata()["accelerate_ext.ema"])
    assert said["sigma_rel"] == 0.15 and said["step"] == 1600 and said["fit"] == "walk" and said["num_sources"] == 16


def test_a_dry_run_says_size_and_error_and_writes_nothing(known_run, tmp_path):
    dry = reconstruct(known_run.save_all(8), 0.15, output=tmp_path / "out.safetensors", dry_run=True)
    assert dry.output_bytes == 607 * 4 + 8 and dry.num_elements == 607
    assert dry.read_bytes == 16 * 607 * 4
    assert dry.predicted_error == reconstruct(known_run.folder, 0.15).predicted_error
    assert not (tmp_path / "out.safetensors").exists()


def test_a_result_in_the_folder_of_snapshots_is_not_taken_for_one(known_run):
    before = reconstruct(known_run.save_all(8), 0.15, output=known_run.folder)
    after = reconstruct(known_run.folder, 0.15, output=known_run.folder, overwrite=True)
    assert before.weights.tolist() == after.weights.tolist()


@pytest.mark.parametrize("step", [float("nan"), float("inf"), 0, -5])
def test_a_step_at_which_nothing_can_end_is_refused_before_anything_is_read(tmp_path, step):
    with pytest.raises(ValueError, match=f"`step` must be a finite number of applied steps above 0, .*got {step}"):
        reconstruct(tmp_path / "nowhere", 0.15, step)


def test_a_visible_error_is_warned_about_and_a_large_one_refused(known_run):
    known_run.save_all(4, (0.10,))
    with pytest.warns(ReconstructionWarning, match=r"expected error for sigma_rel 0\.15: \d"):
        reconstruct(known_run.folder, 0.15)
    with pytest.raises(ReconstructionError, match=r"must not be above 50%, it is sigma_rel 0\.005: \d+%"):
        reconstruct(known_run.folder, [0.15, 0.005])
    with pytest.warns(ReconstructionWarning):
        assert len(reconstruct(known_run.folder, [0.15, 0.005], force=True).tensors) == 2


def test_16_bit_snapshots_are_fitted_with_their_rounding_in_mind(known_run):
    known_run.save_all(32, dtype=torch.bfloat16)
    with pytest.warns(ReconstructionWarning):
        aware = reconstruct(known_run.folder, 0.05)
    stored = {k: v.float() for k, v in load_file(known_run.folder / "000000001600-0.050000.safetensors").items()}
    assert known_run.error(aware.tensors[0], 1600, 0.05) < 0.9 * known_run.error(stored, 1600, 0.05)
    assert 0.5 < known_run.error(aware.tensors[0], 1600, 0.05) / aware.predicted_error[0] < 2


def test_constants_such_as_minus_infinity_are_kept(known_run):
    for t in (400, 800, 1200, 1600):
        for width in (0.05, 0.10):
            mask = torch.full((5,), float("-inf"))
            mask[0] = 0
            known_run.save(t, width, tensors={**known_run.average(t, width), "mask": mask})
    assert reconstruct(known_run.folder, 0.15, force=True).tensors[0]["mask"].tolist() == [0] + [float("-inf")] * 4


def test_tensors_in_another_order_in_some_files_are_found_by_name(known_run):
    expected = reconstruct(known_run.save_all(8), 0.15).tensors[0]
    for t in (800, 1600):
        values = known_run.average(t, 0.10)
        known_run.save(t, 0.10, tensors=dict(reversed(values.items())))
        path = known_run.folder / f"{t:012d}-0.100000.safetensors"
        _reverse_file(path)
    got = reconstruct(known_run.folder, 0.15).tensors[0]
    assert all(torch.allclose(got[name], expected[name], atol=1e-7) for name in expected)


def _reverse_file(path):
    """Lays the tensors out in the opposite order, which is as valid."""
    values = load_file(path)
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    path.unlink()
    slots = [tensor_file.Slot(name, value.dtype, tuple(value.shape)) for name, value in reversed(values.items())]
    file = tensor_file.TensorFile(path, tensor_file.Layout(slots), metadata)
    for name, value in values.items():
        file.write(name, 0, value.reshape(-1))
    file.synchronise()
    file.publish()


# Bad input: an error that names the file, nothing written, nothing replaced.


@pytest.fixture
def refused(known_run, tmp_path):
    """Asserts that a reconstruction fails as it should and leaves the output of before as it was."""
    target = tmp_path / "kept.safetensors"
    target.write_bytes(b"as before")

    def check_refused(error, match, **arguments):
        with pytest.raises(error, match=match):
            reconstruct(known_run.folder, **{"sigma_rel": 0.15, "output": target, "overwrite": True, **arguments})
        assert target.read_bytes() == b"as before"
        assert not [name for name in os.listdir(tmp_path) if name.endswith(".tmp")]

    return check_refused


def test_nan_in_a_snapshot_is_refused_by_file_and_tensor(known_run, refused):
    known_run.save_all(8)
    values = known_run.average(800, 0.05)
    values["layer.weight"][3, 4] = float("nan")
    known_run.save(800, 0.05, tensors=values)
    refused(SnapshotError, r"000000000800-0\.050000.*'layer\.weight' is nan at flat index 31; .*Leave this file out")


def test_a_truncated_snapshot_is_refused_by_name(known_run, refused):
    path = known_run.save_all(8) / "000000000800-0.050000.safetensors"
    path.write_bytes(path.read_bytes()[:-5])
    refused(SnapshotError, r"000000000800-0\.050000\.safetensors must be .* bytes long")


def test_a_snapshot_that_is_cut_while_it_is_read_is_refused_by_name(known_run, refused, monkeypatch):
    path, original = known_run.save_all(8) / "000000000800-0.050000.safetensors", stream.Sums.run

    def cut(self, *arguments):
        os.truncate(path, 1000)
        return original(self, *arguments)

    monkeypatch.setattr(stream.Sums, "run", cut)
    refused(SnapshotError, r"000000000800-0\.050000\.safetensors ended while")


def test_another_model_is_refused_by_file_and_tensor(known_run, refused):
    known_run.save_all(8)
    values = known_run.average(800, 0.05)
    values["layer.weight"] = values["layer.weight"][:-1]
    known_run.save(800, 0.05, tensors=values)
    refused(SnapshotError, r"same model as .*0\.050000.*: ?.*|000000000800-0\.050000\.safetensors \(layer\.weight\)")


def test_missing_and_new_tensors_are_refused_by_name(known_run, refused):
    known_run.save_all(8)
    values = known_run.average(800, 0.05)
    values["new.weight"] = values.pop("layer.bias")
    known_run.save(800, 0.05, tensors=values)
    refused(SnapshotError, r"000000000800-0\.050000\.safetensors \(layer\.bias, new\.weight\)")


def test_two_runs_in_a_folder_are_refused_by_name(known_run, refused):
    known_run.save_all(8)
    known_run.save(900, 0.05, run="run-2")
    refused(
        SnapshotError,
        r"must be of one run, found 'run-1' \(.*\), 'run-2' \(.*000000000900-0\.050000.*InputOptions\(run=",
    )


def test_the_same_step_twice_is_refused_by_name(known_run, tmp_path, refused):
    known_run.save_all(4)
    shutil.copytree(known_run.folder, tmp_path / "again")
    with pytest.raises(SnapshotError, match=r"found twice: .*snapshots/000000000400.* and .*again/000000000400"):
        reconstruct([known_run.folder, tmp_path / "again"], 0.15)


def test_metadata_that_contradicts_itself_is_refused(known_run, refused):
    known_run.save_all(4)
    known_run.save(1600, 0.05, gamma="6.9")
    refused(SnapshotError, r"000000001600-0\.050000.*do not belong together")


@pytest.mark.parametrize("width", [0, -1, 0.2887, 0.35, float("nan")])
def test_a_width_out_of_range_is_refused(known_run, refused, width):
    known_run.save_all(4)
    refused(ValueError, r"`sigma_rel` must lie between 0 and 0\.2887", sigma_rel=width)


def test_a_step_that_was_not_reached_is_refused(known_run, refused):
    known_run.save_all(4)
    refused(ValueError, "must not lie after the last stored one, got 1601 and 1600", step=1601)


def test_unknown_dtypes_outputs_and_repeated_widths_are_refused(known_run, refused, tmp_path):
    known_run.save_all(4)
    refused(ValueError, "`dtype` must be one of float32, bfloat16", dtype="int8")
    refused(ValueError, "one or more different widths", sigma_rel=[0.15, 0.15], output=None)
    refused(ValueError, "2 averages need a folder", sigma_rel=[0.075, 0.15])
    refused(ValueError, r"must be a \.safetensors file or a folder, got .*average\.pt", output=tmp_path / "average.pt")


def test_values_beyond_the_output_dtype_are_refused(known_run, refused):
    for t in (400, 800, 1200, 1600):
        for width in (0.05, 0.10):
            values = known_run.average(t, width)
            values["scale"] = torch.tensor(1e6)
            known_run.save(t, width, tensors=values)
    with pytest.warns(ReconstructionWarning):
        refused(SnapshotError, r"'scale' has values beyond the range of torch\.float16", dtype="float16", force=True)


def test_an_output_that_exists_is_not_replaced_without_being_asked(known_run, refused):
    known_run.save_all(8)
    refused(FileExistsError, r"kept\.safetensors exists", overwrite=False)


@pytest.mark.parametrize("when", ["reserving", "writing"])
def test_no_space_left_is_said_by_file_and_leaves_nothing(known_run, refused, monkeypatch, when):
    known_run.save_all(8)

    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tensor_file, "_reserve" if when == "reserving" else "_write_at", full)
    refused(OSError, r"No space left on device: [\d,]+ bytes are needed, [\d,]+ are free; .*kept\.safetensors")


def test_a_model_loads_the_result(known_run, tmp_path):
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.layer = torch.nn.Embedding(20, 15), torch.nn.Linear(9, 33)
            self.layer.bias = torch.nn.Parameter(torch.zeros(9))
            self.scale = torch.nn.Parameter(torch.zeros(()))
            self.register_buffer("steps_seen", torch.tensor(0))

    reconstruct(known_run.save_all(8), 0.15, output=tmp_path / "model.safetensors")
    model = Model()
    model.load_state_dict(load_file(tmp_path / "model.safetensors"))
    assert known_run.error(model.state_dict(), 1600, 0.15) < 0.01


def test_transformers_loads_the_result(tmp_path, known_run):
    transformers = pytest.importorskip("transformers", reason="needs the package transformers")
    config = transformers.BertConfig(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, vocab_size=11
    )
    model = transformers.BertForMaskedLM(config)
    stored = {name: p.detach().clone() for name, p in model.named_parameters()}
    for t in (800, 1600):
        for width in (0.05, 0.10):
            moved = {name: value + t * width * 1e-3 for name, value in stored.items()}
            known_run.save(t, width, tensors=moved)
    for path in known_run.folder.iterdir():  # buffers of our own do not belong to this model
        values = load_file(path)
        values.pop("steps_seen")
        with safe_open(path, "pt") as file:
            metadata = file.metadata()
        save_file(values, path, metadata=metadata | {"copied": "[]"})
    config.save_pretrained(tmp_path / "hf")
    got = reconstruct(known_run.folder, 0.10, output=tmp_path / "hf" / "model.safetensors", force=True)
    loaded, info = transformers.BertForMaskedLM.from_pretrained(tmp_path / "hf", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"]
    values = load_file(got.paths[0])
    assert all(torch.equal(p, values[name]) for name, p in loaded.named_parameters())


# A real run, from the averages in the training loop to a model that loads.


class TiedModel(torch.nn.Module):
    """With a tied head, a frozen layer and a buffer."""

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(12, 8)
        self.frozen = torch.nn.Linear(8, 8).requires_grad_(False)
        self.norm = torch.nn.BatchNorm1d(8)
        self.head = torch.nn.Linear(8, 12, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        return self.head(self.norm(torch.tanh(self.frozen(self.embed(tokens)))))


def train(model, steps, averages, folder):
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for t in range(1, steps + 1):
        tokens = torch.randint(12, (32,))
        loss = torch.nn.functional.cross_entropy(model(tokens), (tokens * 5 + 1) % 12)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for average in averages:
            average.update(t)
        if t % (steps // 20) == 0:
            averages[0].snapshot(folder)


def test_a_real_run_from_the_training_loop_to_a_model_that_loads(tmp_path):
    torch.manual_seed(0)
    model = TiedModel()
    kept, wanted = PostHocEMA(model, (0.05, 0.10)), PostHocEMA(model, 0.15)
    train(model, 1000, [kept, wanted], tmp_path / "snapshots")
    target = tmp_path / "model.safetensors"
    got = reconstruct(tmp_path / "snapshots", 0.15, output=target)
    loaded = TiedModel()
    safetensors.torch.load_model(loaded, target)
    assert loaded.head.weight is loaded.embed.weight
    assert torch.equal(loaded.frozen.weight, model.frozen.weight)
    assert loaded.norm.num_batches_tracked == 1000
    averages = wanted.averages()
    mine = {name: parameter.detach() for name, parameter in loaded.named_parameters()}
    off = sum(float((mine[name] - value).square().sum()) for name, value in averages.items())
    now = model.state_dict()
    apart = sum(float((now[name] - value).square().sum()) for name, value in averages.items())
    assert (off / apart) ** 0.5 < 4 * got.predicted_error[0] < 0.01
    checked = check(tmp_path / "snapshots")
    assert checked.measured_error < checked.bound
