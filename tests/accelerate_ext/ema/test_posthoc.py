"""Snapshots that a run writes: what is in them, where they load, what they never do."""

import json
import os
import resource
import signal
import subprocess
import sys
import time
import warnings

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, load_model
from torch import nn

from accelerate_ext.ema import EMA, PostHocEMA, Snapshot, SnapshotError, list_snapshots, plan
from accelerate_ext.ema.profile import gamma_from_sigma_rel


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(11, 4)
        self.frozen = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 11, bias=False)
        self.frozen.requires_grad_(False)

    def forward(self, tokens):
        return self.head(self.norm(self.frozen(self.embed(tokens))))


class TiedNet(Net):
    def __init__(self):
        super().__init__()
        self.head.weight = self.embed.weight


def trained(kind=Net, steps=20, **arguments):
    torch.manual_seed(0)
    model = kind()
    ema = PostHocEMA(model, **arguments)
    for step in range(1, steps + 1):
        move(model)
        ema.update(step)
    return model, ema


def move(model):
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter))


def files(directory):
    return sorted(path.name for path in directory.iterdir())


def test_a_snapshot_is_one_file_an_average_with_metadata_that_states_it(tmp_path):
    _, ema = trained()
    paths = ema.snapshot(tmp_path)
    assert files(tmp_path) == ["000000000020-0.050000.safetensors", "000000000020-0.100000.safetensors"]
    for path, width in zip(paths, (0.05, 0.10), strict=True):
        with safe_open(path, "pt") as file:
            metadata = file.metadata()
        assert metadata["snapshot_format"] == "accelerate_ext.ema/1"
        assert (metadata["t"], metadata["step"], metadata["unit"]) == ("20", "20", "updates")
        assert float(metadata["sigma_rel"]) == width
        assert float(metadata["gamma"]) == gamma_from_sigma_rel(width)
        assert (metadata["dtype"], float(metadata["rounding_error"])) == ("float32", 0.0)
        assert metadata["run"] == ema.run
        assert set(json.loads(metadata["copied"])) == {name for name in load_file(path) if "frozen" in name or "running" in name or "batches" in name}  # fmt: skip


def test_a_snapshot_loads_as_the_model_it_is(tmp_path):
    model, ema = trained()
    path = ema.snapshot(tmp_path)[1]
    loaded = Net()
    loaded.load_state_dict(load_file(path), strict=True)
    ema.copy_to(sigma_rel=0.10)
    for name, tensor in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor), name


def test_a_tied_parameter_is_stored_once_and_loads_into_all_its_names(tmp_path):
    _, ema = trained(TiedNet)
    path = ema.snapshot(tmp_path)[0]
    assert "head.weight" not in load_file(path)
    assert Snapshot.read(path).tied == {"head.weight": "embed.weight"}
    loaded = TiedNet()
    load_model(loaded, path, strict=True)
    assert torch.equal(loaded.head.weight, ema.averages(0.05)["embed.weight"])


def test_a_snapshot_of_a_transformers_model_is_its_model_file(tmp_path):
    transformers = pytest.importorskip("transformers", reason="needs Transformers to load the file with")
    config = transformers.GPT2Config(n_layer=1, n_embd=8, n_head=2, vocab_size=20, n_positions=8)
    model = transformers.GPT2LMHeadModel(config)
    ema = PostHocEMA(model, 0.10)
    for step in (1, 2, 3):
        move(model)
        ema.update(step)
    folder = tmp_path / "model"
    config.save_pretrained(folder)
    ema.snapshot(tmp_path)[0].rename(folder / "model.safetensors")
    loaded = transformers.GPT2LMHeadModel.from_pretrained(folder)
    ema.copy_to()
    assert all(torch.equal(loaded.state_dict()[name], tensor) for name, tensor in model.state_dict().items())


def test_a_snapshot_is_loaded_by_accelerate(tmp_path):
    from accelerate import load_checkpoint_and_dispatch

    _, ema = trained()
    path = ema.snapshot(tmp_path)[0]
    loaded = load_checkpoint_and_dispatch(Net(), str(path), device_map={"": "cpu"})
    assert torch.equal(loaded.head.weight, ema.averages()["head.weight"])


@pytest.mark.parametrize(("dtype", "error"), [("bf16", 2**-9), (torch.float16, 2**-12)])
def test_16_bit_snapshots_state_what_the_cast_cost(tmp_path, dtype, error):
    _, ema = trained()
    path = ema.snapshot(tmp_path, dtype=dtype)[0]
    exact, stored = ema.averages(0.05), load_file(path)
    changes = sum((stored[name].double() - exact[name].double()).square().sum() for name in exact)
    squares = sum(average.double().square().sum() for average in exact.values())
    snapshot = Snapshot.read(path)
    assert snapshot.rounding_error == pytest.approx((changes / squares).sqrt().item(), rel=1e-9)
    assert 0.3 * error < snapshot.rounding_error < error
    assert stored["frozen.weight"].dtype == torch.float32  # copies stay exact
    assert snapshot.dtype == str(stored["head.weight"].dtype).removeprefix("torch.")


def test_a_dtype_that_snapshots_do_not_have_is_refused(tmp_path):
    _, ema = trained()
    with pytest.raises(ValueError, match="`dtype` must be one of float32, bfloat16, float16, got 'int8'"):
        ema.snapshot(tmp_path, dtype="int8")


def test_values_that_do_not_fit_the_dtype_are_named_and_nothing_is_written(tmp_path):
    model, ema = trained()
    with torch.no_grad():
        model.head.weight.fill_(1e5)
    ema.update(10_000)
    with pytest.raises(SnapshotError, match=r"(?s)do not fit the dtype asked for: head\.weight\."):
        ema.snapshot(tmp_path, dtype="float16")
    assert files(tmp_path) == []
    assert len(ema.snapshot(tmp_path, dtype="bfloat16")) == 2


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_averages_that_hold_nan_are_named_and_nothing_is_written(tmp_path, value):
    model, ema = trained()
    first = ema.snapshot(tmp_path)
    with torch.no_grad():
        model.embed.weight[3, 2] = value
        model.norm.bias[1] = value
    ema.update(21)
    with pytest.raises(SnapshotError, match=r"(?s)hold NaN or infinity.*embed\.weight, norm\.bias"):
        ema.snapshot(tmp_path)
    assert files(tmp_path) == [path.name for path in first]


def test_a_buffer_may_hold_infinity(tmp_path):
    model = nn.Linear(2, 2)
    model.register_buffer("mask", torch.tensor([0.0, float("-inf")]))
    ema = PostHocEMA(model)
    ema.update(1)
    assert load_file(ema.snapshot(tmp_path)[0])["mask"].tolist() == [0.0, float("-inf")]


def test_there_is_nothing_to_write_before_the_first_update(tmp_path):
    with pytest.raises(ValueError, match="before the first applied update"):
        PostHocEMA(Net()).snapshot(tmp_path)


def test_the_same_step_twice_is_written_once(tmp_path):
    model, ema = trained()
    paths = ema.snapshot(tmp_path)
    before = [path.stat().st_mtime_ns for path in paths]
    move(model)  # an attempt that was skipped would end here
    ema.update(20)
    assert ema.snapshot(tmp_path) == paths
    assert [path.stat().st_mtime_ns for path in paths] == before
    with pytest.raises(SnapshotError, match="exists already, in float32; it was not overwritten"):
        ema.snapshot(tmp_path, dtype="bf16")


def test_a_snapshot_of_another_run_at_the_same_step_is_named(tmp_path):
    (_, first), (_, second) = trained(), trained()
    second.update(21)
    first.snapshot(tmp_path / "first")
    second.snapshot(tmp_path / "own")
    first.update(21)
    for path in (first.snapshot(tmp_path / "first"), second.snapshot(tmp_path / "own")):
        assert all(file.exists() for file in path)
    for file in (tmp_path / "first").iterdir():
        file.replace(tmp_path / "own" / file.name)
    with pytest.raises(
        SnapshotError, match=f"exists already, of the run {first.run!r}, this is {second.run!r}; it was"
    ):
        second.snapshot(tmp_path / "own")


@pytest.mark.parametrize("switch", ["wait", "sharded", "set_aside"])
def test_a_switch_that_is_none_is_refused(tmp_path, switch):
    _, ema = trained()
    with pytest.raises(TypeError, match=f"`{switch}` must be True or False, got 'no'"):
        ema.snapshot(tmp_path / "run", **{switch: "no"})
    assert not (tmp_path / "run").exists()


def test_a_plan_takes_no_word_for_a_switch(tmp_path):
    with pytest.raises(TypeError, match="`wait` must be True or False, got 'no'"):
        PostHocEMA(Net(), wait="no")


def test_a_snapshot_needs_a_folder():
    with pytest.raises(TypeError, match="`directory` must name a folder, got None"):
        trained()[1].snapshot(None)


def test_of_a_pair_that_was_half_written_the_other_half_is_added(tmp_path):
    _, ema = trained()
    paths = ema.snapshot(tmp_path)
    kept = paths[0].read_bytes()
    paths[1].unlink()
    ema.snapshot(tmp_path)
    assert paths[1].exists()
    assert paths[0].read_bytes() == kept


def test_snapshots_do_not_change_the_run(tmp_path):
    _, with_snapshots = trained()
    with_snapshots.snapshot(tmp_path)
    _, without = trained()
    for width in (0.05, 0.10):
        for name, average in without.averages(width).items():
            assert torch.equal(average, with_snapshots.averages(width)[name])


def test_after_a_step_back_later_snapshots_are_set_aside(tmp_path):
    model, ema = trained(steps=10)
    ema.snapshot(tmp_path)
    state = {
        **ema.state_dict(),
        "averages": [{n: a.clone() for n, a in s.items()} for s in ema.state_dict()["averages"]],
    }
    for step in (11, 12):
        move(model)
        ema.update(step)
        ema.snapshot(tmp_path)
    resumed = PostHocEMA(model)
    resumed.load_state_dict(state)
    assert resumed.run == ema.run
    move(model)
    resumed.update(11)
    resumed.snapshot(tmp_path)
    assert [snapshot.t for snapshot in list_snapshots(tmp_path)] == [10, 10, 11, 11]
    assert [path.name[:12] for path in sorted((tmp_path / "set-aside" / "1").iterdir())] == ["000000000011"] * 2 + ["000000000012"] * 2  # fmt: skip
    assert torch.equal(load_file(tmp_path / "000000000011-0.100000.safetensors")["head.weight"], resumed.averages(0.10)["head.weight"])  # fmt: skip


def another_run(model):
    return PostHocEMA(model), "of the run"


def another_width(model):
    return PostHocEMA(model, (0.02, 0.05), run="a"), r"sigma_rel 0.1, this run keeps 0.02, 0.05"


def another_model(model):
    return PostHocEMA(nn.Sequential(model, nn.Linear(2, 2)), run="a"), "other averaged parameters"


@pytest.mark.parametrize("other", [another_run, another_width, another_model], ids=lambda f: f.__name__)
def test_snapshots_of_something_else_are_refused_unless_they_are_to_be_set_aside(tmp_path, other):
    model, first = trained(run="a", steps=3)
    first.snapshot(tmp_path)
    before = files(tmp_path)
    ema, text = other(model)
    ema.update(7)
    with pytest.raises(
        SnapshotError, match=rf"(?s)must not mix.*set_aside=True.*000000000003-0.1\d*\.safetensors: {text}"
    ):
        ema.snapshot(tmp_path)
    assert files(tmp_path) == before
    ema.snapshot(tmp_path, set_aside=True)
    assert {snapshot.t for snapshot in list_snapshots(tmp_path) if snapshot.sigma_rel == 0.10} <= {7}


def test_a_folder_with_a_damaged_snapshot_is_refused_naming_it(tmp_path):
    _, ema = trained(run="a", steps=3)
    path = ema.snapshot(tmp_path)[0]
    path.write_bytes(path.read_bytes()[:-1])
    again = PostHocEMA(Net(), run="a")
    again.update(1)
    with pytest.raises(
        SnapshotError, match=rf"(?s){path}: must be \d+ bytes long by its header, it is \d+: cut short"
    ):
        again.snapshot(tmp_path)


def test_a_part_without_those_of_the_other_ranks_is_set_aside(tmp_path):
    _, ema = trained(run="a", steps=3)
    path = ema.snapshot(tmp_path)[0]
    part = path.rename(tmp_path / "000000000003-0.050000.rank00001-of-00002.safetensors")
    again = PostHocEMA(Net())
    again.load_state_dict(ema.state_dict())
    again.update(4)
    again.snapshot(tmp_path)
    assert (tmp_path / "set-aside" / "1" / part.name).exists()
    assert [(snapshot.t, snapshot.sigma_rel) for snapshot in list_snapshots(tmp_path)] == [
        (3, 0.1),
        (4, 0.05),
        (4, 0.1),
    ]


def test_other_files_in_the_folder_are_left_alone(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"not ours")
    (tmp_path / "notes.txt").write_text("kept")
    _, ema = trained()
    ema.snapshot(tmp_path)
    assert (tmp_path / "model.safetensors").read_bytes() == b"not ours"
    assert (tmp_path / "notes.txt").read_text() == "kept"


def test_a_path_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    _, ema = trained()
    with pytest.raises(NotADirectoryError, match="snapshots need a folder"):
        ema.snapshot(tmp_path / "file")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write into a folder without write permission")
def test_a_folder_without_write_permission_is_an_error(tmp_path):
    folder = tmp_path / "snapshots"
    folder.mkdir(mode=0o500)
    _, ema = trained()
    with pytest.raises(PermissionError, match="a snapshot of"):
        ema.snapshot(folder)


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path):
    _, ema = trained()
    with pytest.raises(OSError, match="proc"):
        ema.snapshot("/proc/snapshots")


def test_no_space_left_is_told_and_leaves_nothing_behind(tmp_path):
    model = nn.Linear(1000, 100)
    ema = PostHocEMA(model)
    ema.update(1)
    first = ema.snapshot(tmp_path)
    ema.update(2)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(OSError, match=r"40\d,\d+ bytes are needed, [\d,]+ are free; no part of the file is left"):
            ema.snapshot(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert files(tmp_path) == sorted(path.name for path in first)
    ema.snapshot(tmp_path)
    assert [snapshot.t for snapshot in list_snapshots(tmp_path)] == [1, 1, 2, 2]


KILLED = """
import sys, torch
from accelerate_ext.ema import PostHocEMA
model = torch.nn.Linear(3000, 3000)
ema = PostHocEMA(model, run="a")
for step in range(1, 1000):
    ema.update(step)
    ema.snapshot(sys.argv[1])
"""


@pytest.mark.processes
@pytest.mark.xdist_group("ema-processes")
def test_a_run_that_is_killed_in_the_middle_of_a_write_leaves_only_whole_snapshots(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)])
    while True:  # it stands still while it is looked at, so that it dies where it was seen
        process.send_signal(signal.SIGSTOP)
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status), "the run ended by itself"
        hidden = len(list_hidden(tmp_path))
        if hidden >= 2 and len(os.listdir(tmp_path)) - hidden >= 4:
            break
        process.send_signal(signal.SIGCONT)
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert len(list_hidden(tmp_path)) >= 2
    found = list_snapshots(tmp_path)
    assert len(found) >= 4
    for snapshot in found:
        assert load_file(snapshot.path).keys() == {"weight", "bias"}
    ema = PostHocEMA(nn.Linear(3000, 3000), run="a")
    ema.update(1)
    ema.snapshot(tmp_path)
    assert list_hidden(tmp_path) == []


def list_hidden(folder):
    return [name for name in os.listdir(folder) if name.startswith(".")]


def test_a_plan_is_followed_by_update(tmp_path):
    torch.manual_seed(0)
    model, wanted = Net(), plan(100, 5, sigma_rel=(0.05, 0.20), spacing="even")
    ema = PostHocEMA(model, plan=wanted, directory=tmp_path)
    assert ema.sigma_rel == (0.05, 0.20)
    for attempt in range(1, 121):
        ema.update(attempt * 5 // 6)  # every sixth is skipped
    assert [snapshot.t for snapshot in list_snapshots(tmp_path)] == [
        t for t in (20, 40, 60, 80, 100) for _ in range(2)
    ]


def test_a_planned_time_between_two_late_updates_is_written_at_the_second(tmp_path):
    ema = PostHocEMA(Net(), 0.10, plan=plan(100, 2, sigma_rel=(0.10,), spacing="even"), directory=tmp_path)
    for step in (30, 60, 90, 120):
        ema.update(step)
    assert [snapshot.t for snapshot in list_snapshots(tmp_path)] == [60, 120]


def follow(ema, *times):
    for t in times:
        ema.update(t)


def test_training_beyond_its_plan_is_said_once(tmp_path):
    ema = PostHocEMA(Net(), 0.10, plan=plan(10, 2, sigma_rel=(0.10,)), directory=tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        follow(ema, *range(1, 11), 10, 10)
    with pytest.warns(UserWarning, match=r"plan ends at 10 and training goes on, to 11 .*`snapshot`") as said:
        follow(ema, 11, 12, 20)
    assert len(said) == 1 and said[0].filename == __file__
    assert max(snapshot.t for snapshot in list_snapshots(tmp_path)) == 10


def test_a_last_update_that_steps_over_the_end_of_the_plan_is_no_training_beyond_it(tmp_path):
    ema = PostHocEMA(Net(), 0.10, plan=plan(100, 2, sigma_rel=(0.10,)), directory=tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        follow(ema, *range(16, 113, 16))  # images, by batches
    assert max(snapshot.t for snapshot in list_snapshots(tmp_path)) == 112


def test_a_plan_needs_a_directory_and_steps_on_the_host(tmp_path):
    with pytest.raises(ValueError, match="`plan` and `directory` go together"):
        PostHocEMA(Net(), directory=tmp_path)
    ema = PostHocEMA(Net(), plan=plan(100, 2), directory=tmp_path)
    with pytest.raises(TypeError, match="a plan needs `t` as an int"):
        ema.update(torch.tensor(3))


def test_a_folder_that_cannot_be_written_is_told_at_the_first_update_and_not_at_the_first_snapshot(tmp_path):
    _, other = trained()
    other.snapshot(tmp_path / "taken")
    ema = PostHocEMA(Net(), plan=plan(100, 2), directory=tmp_path / "taken")
    ema.update(0)
    with pytest.raises(SnapshotError, match="must not mix with those of this run"):
        ema.update(1)
    PostHocEMA(Net(), plan=plan(100, 2), directory=tmp_path / "taken", set_aside=True).update(1)
    assert files(tmp_path / "taken") == ["set-aside"]
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError, match="snapshots need a folder"):
        PostHocEMA(Net(), plan=plan(100, 2), directory=tmp_path / "file").update(1)


def test_a_plan_must_be_one(tmp_path):
    with pytest.raises(TypeError, match=r"`plan` must be what `accelerate_ext.ema.plan\(\)` returns, got int"):
        PostHocEMA(Net(), plan=3, directory=tmp_path)


def test_lent_weights_are_not_written(tmp_path):
    _, ema = trained()
    with ema.averaged_weights(), pytest.raises(RuntimeError, match="call `restore` before a snapshot"):
        ema.snapshot(tmp_path)


def test_of_an_adapter_only_its_own_parameters_are_written_where_these_are_given(tmp_path):
    model = Net().requires_grad_(False)
    model.head.requires_grad_(True)
    ema = PostHocEMA({name: p for name, p in model.named_parameters() if p.requires_grad})
    for step in (1, 2):
        with torch.no_grad():
            model.head.weight.add_(1.0)
        ema.update(step)
    path = ema.snapshot(tmp_path)[0]
    assert load_file(path).keys() == {"head.weight"}
    with ema.averaged_weights():
        assert torch.equal(model.head.weight, load_file(path)["head.weight"])
    assert not model.load_state_dict(load_file(path), strict=False).unexpected_keys


def test_buffers_that_no_safetensors_file_can_hold_are_named(tmp_path):
    model = nn.Linear(2, 1)
    for name in ("turns", "waves"):
        model.register_buffer(name, torch.zeros(3, dtype=torch.complex128))
    ema = PostHocEMA(model)
    ema.update(1)
    with pytest.raises(SnapshotError, match=r"turns \(complex128\), waves \(complex128\)\. .*`persistent=False`"):
        ema.snapshot(tmp_path)
    assert files(tmp_path) == []


def test_an_exponential_average_is_saved_as_a_model_file_and_nothing_is_overwritten(tmp_path):
    model = Net()
    ema = EMA(model, decay=0.9)
    move(model)
    ema.update(1)
    path = ema.save(tmp_path / "model.safetensors")
    Net().load_state_dict(load_file(path), strict=True)
    assert torch.equal(load_file(path)["head.weight"], ema.averages()["head.weight"])
    before = path.read_bytes()
    with pytest.raises(FileExistsError):
        ema.save(path)
    assert path.read_bytes() == before
    assert files(tmp_path) == ["model.safetensors"]


def test_an_average_is_saved_into_a_folder_that_is_not_there_yet_and_under_no_name_of_another_kind(tmp_path):
    ema = EMA(Net(), decay=0.9)
    assert ema.save(tmp_path / "out" / "ema" / "model.safetensors").is_file()
    for name in ("model.pt", "model", "ema"):
        with pytest.raises(ValueError, match=rf"`path` must end in \.safetensors, got .*{name}$"):
            ema.save(tmp_path / "out" / name)
    assert files(tmp_path / "out") == ["ema"]


def test_images_are_the_time_of_snapshots_where_they_are_counted(tmp_path):
    ema = PostHocEMA(Net())
    ema.update(3, n=256)
    path = ema.snapshot(tmp_path)[0]
    snapshot = Snapshot.read(path)
    assert (snapshot.t, snapshot.step, snapshot.unit) == (768, 3, "images")


def test_channels_last_weights_are_stored_in_the_order_of_their_dimensions(tmp_path):
    model = nn.Conv2d(8, 16, 3).to(memory_format=torch.channels_last)
    ema = PostHocEMA(model)
    ema.update(1)
    assert torch.equal(load_file(ema.snapshot(tmp_path)[0])["weight"], model.weight)


def test_a_plan_says_what_its_snapshots_are_stored_in(tmp_path):
    for number, (given, expected) in enumerate([({}, "float16"), ({"snapshot_dtype": "float32"}, "float32")]):
        folder = tmp_path / str(number)
        made = plan(2, 1, sigma_rel=0.1, dtype="float16")
        ema = PostHocEMA(nn.Linear(2, 1), plan=made, directory=folder, **given)
        ema.update(2)
        assert [snapshot.dtype for snapshot in list_snapshots(folder)] == [expected]
