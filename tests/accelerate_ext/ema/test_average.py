"""Averages against their definition, in float64; resuming; devices; the rules for t."""

import copy
import io

import numpy as np
import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from accelerate_ext.ema import EMA, PostHocEMA
from accelerate_ext.ema.profile import gamma_from_sigma_rel


def definition(t, sigma_rel):
    """Weight of each step 1..t: the integral of the profile over the step."""
    power = gamma_from_sigma_rel(sigma_rel) + 1
    edges = np.arange(t + 1, dtype=np.longdouble) / t
    return np.diff(edges**power).astype(np.float64)


def profile_of(ema, parameter, steps, every=1, as_t=int, **more):
    """Runs one-hot weights through an average, whose elements are then the weights of the steps."""
    for step in range(1, steps + 1):
        with torch.no_grad():
            parameter.zero_()
            parameter[step - 1] = 1.0
        if step % every == 0:
            ema.update(as_t(step), **more)
    return parameter


def walk(model, generator):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator))


def small_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.Linear(7, 3))


def run(model, ema, steps, first=1, seed=1, as_t=int):
    generator = torch.Generator().manual_seed(seed)
    for step in range(1, steps + 1):
        walk(model, generator)
        if step >= first:
            ema.update(as_t(step))


def bits(ema):
    index = getattr(ema, "sigma_rel", (None,))
    return {
        (width, name): average.clone().view(torch.uint8)
        for width in index
        for name, average in ema.averages(width).items()
    }


def assert_same_bits(one, other):
    assert one.keys() == other.keys()
    assert [key for key in one if not torch.equal(one[key], other[key])] == []


@pytest.mark.parametrize(
    ("sigma_rel", "dtype", "error"),
    [
        (0.05, torch.float32, 1e-6),
        (0.10, torch.float32, 1e-6),
        (0.20, torch.float32, 2e-6),  # 10,000 roundings to float32 of 6e-8 each
        (0.05, torch.float64, 1e-12),
        (0.10, torch.float64, 1e-12),
        (0.20, torch.float64, 1e-12),
    ],
)
def test_the_profile_of_a_kept_average_is_its_closed_form_over_10000_steps(sigma_rel, dtype, error):
    parameter = nn.Parameter(torch.zeros(10_000))
    ema = PostHocEMA([parameter], sigma_rel, dtype=dtype)
    profile_of(ema, parameter, 10_000)
    kept, wanted = ema.averages()["0"].double().numpy(), definition(10_000, sigma_rel)
    assert np.linalg.norm(kept - wanted) < error * np.linalg.norm(wanted)


def test_an_average_of_a_walk_is_the_weighted_sum_of_its_steps():
    torch.manual_seed(0)
    steps, parameter = 10_000, nn.Parameter(torch.zeros(16, dtype=torch.float64))
    path = torch.randn(steps, 16, dtype=torch.float64).cumsum(0)
    ema = PostHocEMA([parameter], (0.05, 0.10))
    for step in range(steps):
        with torch.no_grad():
            parameter.copy_(path[step])
        ema.update(step + 1)
    for sigma_rel in (0.05, 0.10):
        wanted = torch.from_numpy(definition(steps, sigma_rel)) @ path
        torch.testing.assert_close(ema.averages(sigma_rel)["0"], wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("every", [1, 10, 100])
def test_the_width_does_not_depend_on_how_often_update_is_called(every):
    parameter = nn.Parameter(torch.zeros(20_000))
    ema = PostHocEMA([parameter], 0.10, dtype=torch.float64)
    profile_of(ema, parameter, 20_000, every=every)
    weights, steps = ema.averages()["0"].numpy(), np.arange(1, 20_001)
    mean = (weights * steps).sum()
    assert weights.sum() == pytest.approx(1, abs=1e-9)
    assert np.sqrt((weights * (steps - mean) ** 2).sum()) / 20_000 == pytest.approx(0.100, abs=2e-4)


def test_a_late_update_covers_exactly_the_steps_since_the_last_one():
    model, other = small_model(), small_model()
    late, often = PostHocEMA(model), PostHocEMA(other)
    run(model, late, 10)
    run(other, often, 10)
    for step in range(11, 31):  # the model stands still: one late call must equal twenty
        often.update(step)
    late.update(30)
    for width in (0.05, 0.10):
        for name, average in late.averages(width).items():
            torch.testing.assert_close(average, often.averages(width)[name], rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("as_t", [int, torch.tensor])
@pytest.mark.parametrize("make", [PostHocEMA, EMA, lambda model: EMA(model, use_ema_warmup=True)])
def test_nothing_new_applied_changes_no_bit(make, as_t):
    model = small_model()
    with torch.no_grad():
        model[0].weight.fill_(-0.0)
    ema = make(model)
    for _ in range(3):
        ema.update(as_t(7))
    before = bits(ema)
    walk(model, torch.Generator().manual_seed(3))
    with torch.no_grad():
        model[2].weight.fill_(float("nan"))
        model[0].weight.fill_(float("inf"))
    ema.update(as_t(7))
    assert ema.t == 7
    assert_same_bits(before, bits(ema))


@pytest.mark.parametrize("make", [PostHocEMA, EMA, lambda model: EMA(model, use_ema_warmup=True, update_after_step=4)])
@pytest.mark.parametrize("every", [1, 7])
def test_a_tensor_t_gives_the_same_averages_as_a_number(make, every):
    results = []
    for as_t in (int, torch.tensor):
        model = small_model()
        ema = make(model)
        generator = torch.Generator().manual_seed(1)
        for step in range(1, 50):
            walk(model, generator)
            if step % every == 0:
                ema.update(as_t(step))
        results.append({key: value.view(torch.float32) for key, value in bits(ema).items()})
    for key, value in results[0].items():
        torch.testing.assert_close(results[1][key], value, rtol=1e-6, atol=1e-6)


class CountScalars(TorchDispatchMode):
    """Counts the operations that fetch a value from a device."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += "_local_scalar_dense" in str(function) or "nonzero" in str(function)
        return function(*args, **(kwargs or {}))


class CountFetches(TorchFunctionMode):
    """Counts what does the same without an operation."""

    count = 0

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.count += getattr(function, "__name__", "") in ("tolist", "numpy", "cpu", "item", "__bool__", "__index__")
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("make", [PostHocEMA, EMA, lambda model: EMA(model, use_ema_warmup=True)])
def test_a_tensor_t_is_never_read_on_the_host(make):
    model = small_model()
    ema, t = make(model), torch.zeros((), dtype=torch.int64)
    with CountScalars() as scalars, CountFetches() as fetches:
        for applied in (1, 1, 0, 1, 0):  # some updates are skipped
            t += applied
            walk(model, torch.Generator().manual_seed(3))
            ema.update(t)
    assert (scalars.count, fetches.count) == (0, 0)
    with scalars, fetches:
        assert ema.t == t.item() == 3
    assert scalars.count > 0  # the counters do count
    assert fetches.count > 0


def test_a_tensor_t_that_goes_back_changes_nothing_and_is_told_when_the_clock_is_read():
    model = small_model()
    ema = PostHocEMA(model)
    ema.update(torch.tensor(5))
    before = bits(ema)
    walk(model, torch.Generator().manual_seed(3))
    ema.update(torch.tensor(4))
    assert_same_bits(before, bits(ema))
    with pytest.raises(ValueError, match="must not go back"):
        ema.state_dict()


@pytest.mark.parametrize("make", [PostHocEMA, EMA])
def test_a_step_that_goes_back_is_an_error_and_changes_nothing(make):
    model = small_model()
    ema = make(model)
    run(model, ema, 5)
    before = bits(ema)
    with pytest.raises(ValueError, match=r"applied step 5, got 1\. After going back to an older checkpoint"):
        ema.update(1)
    assert_same_bits(before, bits(ema))


@pytest.mark.parametrize(("t", "error"), [(-1, ValueError), (1.5, TypeError), ("3", TypeError), (None, TypeError)])
def test_a_step_must_be_a_whole_number(t, error):
    with pytest.raises(error, match="`t` must be"):
        PostHocEMA(small_model()).update(t)


def test_a_step_tensor_of_a_floating_dtype_is_refused():
    with pytest.raises(TypeError, match="whole number of one element"):
        PostHocEMA(small_model()).update(torch.tensor(3.0, dtype=torch.float16))


@pytest.mark.parametrize("make", [PostHocEMA, lambda model: EMA(model, decay=0.9, use_ema_warmup=True)])
def test_save_load_and_go_on_equals_never_having_stopped(make):
    model = small_model()
    straight = make(model)
    run(model, straight, 40)
    first = small_model()
    stopped = make(first)
    run(first, stopped, 25)
    file = io.BytesIO()
    torch.save(stopped.state_dict(), file)
    file.seek(0)
    state = torch.load(file, weights_only=True)
    second = small_model()
    resumed = make(second)
    resumed.load_state_dict(state)
    generator = torch.Generator().manual_seed(1)
    for step in range(1, 41):
        walk(second, generator)
        if step > 25:
            resumed.update(step)
    assert_same_bits(bits(straight), bits(resumed))
    assert (resumed.t, resumed.step) == (40, 40)


def test_a_state_of_other_averages_is_refused_with_everything_that_differs():
    ema = PostHocEMA(small_model())
    with pytest.raises(ValueError, match=r"(?s)sigma_rel: \[0.05, 0.1\] here, \[0.02, 0.1\] there"):
        ema.load_state_dict(PostHocEMA(small_model(), (0.02, 0.10)).state_dict())
    with pytest.raises(
        ValueError, match=r"(?s)2\.bias: not averaged.*0\.weight: float32\[7, 5\] here, float32\[7, 6\]"
    ):
        PostHocEMA(nn.Sequential(nn.Linear(5, 7))).load_state_dict(
            PostHocEMA(nn.Sequential(nn.Linear(6, 7), nn.ReLU(), nn.Linear(7, 2))).state_dict()
        )
    with pytest.raises(ValueError, match="lacks decay"):
        EMA(small_model()).load_state_dict(ema.state_dict())


@pytest.mark.parametrize("pattern", ["every third", "the first", "the last", "a long run"])
def test_skipped_updates_anywhere_leave_exactly_the_average_of_a_run_without_them(pattern):
    skipped = {
        "every third": lambda attempt: attempt % 3 == 0,
        "the first": lambda attempt: attempt < 4,
        "the last": lambda attempt: attempt > 55,
        "a long run": lambda attempt: 20 < attempt < 45,
    }[pattern]
    model, generator, applied = small_model(), torch.Generator().manual_seed(5), 0
    ema = PostHocEMA(model)
    for attempt in range(60):
        if not skipped(attempt):
            walk(model, generator)
            applied += 1
        ema.update(applied)
    without = small_model()
    other = PostHocEMA(without)
    run(without, other, applied, seed=5)
    assert_same_bits(bits(other), bits(ema))


def test_images_are_counted_where_n_is_given():
    parameter = nn.Parameter(torch.zeros(600))
    ema = PostHocEMA([parameter], 0.10, dtype=torch.float64)
    for step in range(1, 601):
        with torch.no_grad():
            parameter.zero_()
            parameter[step - 1] = 1.0
        ema.update(step, n=8 if step <= 300 else 32)  # the batch grows
    edges = np.concatenate([np.arange(301) * 8, 2400 + np.arange(1, 301) * 32]) / (300 * 40)
    wanted = np.diff(edges ** (gamma_from_sigma_rel(0.10) + 1))
    np.testing.assert_allclose(ema.averages()["0"].numpy(), wanted, atol=1e-12)
    assert (ema.t, ema.step) == (12_000, 600)


def test_images_are_counted_on_the_device_too():
    model = small_model()
    ema = PostHocEMA(model)
    for step in (1, 2, 2, 5):
        ema.update(torch.tensor(step), n=torch.tensor(16))
    assert (ema.t, ema.step) == (80, 5)


def test_n_must_be_given_always_or_never():
    ema = PostHocEMA(small_model())
    ema.update(1, n=4)
    with pytest.raises(ValueError, match=r"count images: `n` must be given at every update or at none"):
        ema.update(2)
    with pytest.raises(ValueError, match="takes no `n`"):
        EMA(small_model()).update(1, n=4)


@pytest.mark.parametrize("as_t", [int, torch.tensor])
def test_a_run_of_600000_steps_does_not_stall_in_float32(as_t):
    """Weights that move by 0.1 % in all. Averages that move every step are off by more than their whole distance."""
    steps, widths, rng = 600_000, (0.05, 0.10, 0.20), np.random.default_rng(0)
    walk = rng.standard_normal((steps, 4)).cumsum(0)
    path = np.array([1, 1.4, 1.9, -0.3]) * (1 + 1e-3 * walk / abs(walk).max(0))
    values, first = torch.from_numpy(path).float(), 1
    parameter = nn.Parameter(values[0].clone())
    ema = PostHocEMA([parameter], widths)
    if as_t is torch.tensor:  # slower: only the end, from an exact start
        first = 590_000
        ema = continued(ema, parameter, first, widths, path)
    for step in range(first, steps + 1):
        if step % max(1, step // 32_768) == 0 or step == steps:
            parameter.data = values[step - 1]
            ema.update(as_t(step))
    for sigma_rel in widths:
        wanted = definition(steps, sigma_rel) @ path
        kept = ema.averages(sigma_rel)["0"].double().numpy()
        assert np.linalg.norm(kept - wanted) < 0.01 * np.linalg.norm(wanted - path[-1])
    power, every_step = (
        gamma_from_sigma_rel(0.10) + 1,
        torch.from_numpy(definition(500_000, 0.10) @ path[:500_000]).float(),
    )
    for step in range(500_001, steps + 1):
        every_step.lerp_(values[step - 1], 1 - (1 - 1 / step) ** power)
    wanted = definition(steps, 0.10) @ path
    assert np.linalg.norm(every_step.numpy() - wanted) > 0.1 * np.linalg.norm(wanted - path[-1])


def continued(ema, parameter, first, widths, path):
    """The average as it should be just before step `first`, with its clock."""
    state = ema.state_dict()
    for sigma_rel, averages in zip(widths, state["averages"], strict=True):
        averages["0"].copy_(torch.from_numpy(definition(first - 1, sigma_rel) @ path[: first - 1]))
    state["clock"] = {"step": first - 1, "now": first - 1, "averaged": first - 1, "unit": "updates"}
    ema.load_state_dict(state)
    return ema


def test_a_long_run_moves_its_averages_every_few_steps_and_a_snapshot_brings_them_up_to_now(tmp_path):
    parameter = nn.Parameter(torch.zeros(1))
    ema = PostHocEMA([parameter], 0.10)
    ema.update(100_000)
    before = bits(ema)
    with torch.no_grad():
        parameter.add_(1)
    ema.update(100_002)  # moves every 3rd step from here
    assert_same_bits(before, bits(ema))
    assert ema.t == 100_002
    ema.snapshot(tmp_path)
    power = gamma_from_sigma_rel(0.10) + 1
    assert ema.averages()["0"].item() == pytest.approx(1 - (1 - 2 / 100_002) ** power, rel=1e-6)
    ema.update(100_002)
    assert ema.averages()["0"].item() == pytest.approx(1 - (1 - 2 / 100_002) ** power, rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_averages_of_16_bit_models_are_kept_in_float32(dtype):
    parameter = nn.Parameter(torch.zeros(1000, dtype=dtype))
    ema = PostHocEMA([parameter], 0.10)
    profile_of(ema, parameter, 1000)
    assert ema.averages()["0"].dtype == torch.float32
    np.testing.assert_allclose(ema.averages()["0"].numpy(), definition(1000, 0.10), atol=1e-8)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_dtype_of_the_averages_can_be_set(dtype):
    model = small_model()
    ema = EMA(model, decay=0.5, dtype=dtype)
    run(model, ema, 20)
    exact, again = EMA(other := small_model(), decay=0.5, dtype=torch.float64), ema.averages()["0.weight"]
    run(other, exact, 20)
    assert again.dtype == dtype
    tolerance = {torch.float64: 0, torch.float32: 1e-5, torch.bfloat16: 0.05}[dtype]
    torch.testing.assert_close(again.double(), exact.averages()["0.weight"], rtol=tolerance, atol=tolerance)


def test_to_moves_the_averages_to_another_dtype():
    model = small_model()
    ema = PostHocEMA(model)
    run(model, ema, 10)
    before = copy.deepcopy(ema.averages(0.10))
    ema.to(dtype=torch.float64)
    assert {average.dtype for average in ema.averages(0.10).values()} == {torch.float64}
    for name, average in ema.averages(0.10).items():
        assert torch.equal(average.float(), before[name])


@pytest.mark.parametrize("sigma_rel", [0, -0.1, 0.29, 0.4, float("nan")])
def test_a_width_out_of_range_is_refused(sigma_rel):
    with pytest.raises(ValueError, match="`sigma_rel` must lie between 0 and 0"):
        PostHocEMA(small_model(), sigma_rel)


def test_two_widths_must_differ():
    with pytest.raises(ValueError, match="differ by 1e-6 or more"):
        PostHocEMA(small_model(), (0.05, 0.0500001))
    with pytest.raises(ValueError, match=r"must be one of \(0.05, 0.1\), got 0.2"):
        PostHocEMA(small_model()).averages(0.2)


def test_a_decay_is_constant_from_the_first_applied_update():
    parameter = nn.Parameter(torch.zeros(50))
    ema = EMA([parameter], decay=0.9, dtype=torch.float64)
    profile_of(ema, parameter, 50)
    wanted = 0.1 * 0.9 ** np.arange(49, -1, -1.0)
    wanted[0] = 0.9**49
    np.testing.assert_allclose(ema.averages()["0"].numpy(), wanted, atol=1e-12)


WARM_UPS = {
    "inverse power": ({"use_ema_warmup": True, "inv_gamma": 2.0, "power": 0.75}, lambda s: 1 - (1 + s / 2) ** -0.75),
    "EMAModel's own": ({"use_ema_warmup": False}, lambda s: (1 + s) / (10 + s)),
    "constant": ({}, lambda s: 0.98),
}


@pytest.mark.parametrize("name", WARM_UPS)
@pytest.mark.parametrize("every", [1, 13])
def test_a_warm_up_has_the_decays_of_its_formula_however_often_it_is_called(name, every):
    """Diffusers' EMAModel: 0 up to update_after_step + 1, then the formula of the steps since, between the limits."""
    arguments, formula = WARM_UPS[name]
    parameter = nn.Parameter(torch.ones(1, dtype=torch.float64))
    ema = EMA([parameter], decay=0.98, min_decay=0.3, update_after_step=10, **arguments)
    for step in range(1, 14):
        ema.update(step)
    with torch.no_grad():
        parameter.zero_()  # from here on the average is the product of the decays
    for step in range(13 + every, 13 + 26 * 5 + 1, every):
        ema.update(step)
    decays = [max(min(formula(step - 11), 0.98), 0.3) for step in range(14, 13 + 26 * 5 + 1)]
    assert ema.averages()["0"].item() == pytest.approx(np.prod(decays), rel=1e-9)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"decay": 1.5}, "`decay` must lie between 0 and 1, got 1.5"),
        ({"min_decay": -1}, "`min_decay` must lie between 0 and 1"),
        ({"update_after_step": -3}, "`update_after_step` must be a step"),
        ({"inv_gamma": 0}, "`inv_gamma` and `power` must be above 0"),
    ],
)
def test_settings_out_of_range_are_refused(arguments, text):
    with pytest.raises(ValueError, match=text):
        EMA(small_model(), **arguments)


def test_settings_that_are_no_numbers_are_all_told():
    with pytest.raises(TypeError, match=r"these must be numbers: `decay` \('0.99'\), `power` \(None\)"):
        EMA(small_model(), decay="0.99", power=None)


def test_what_is_no_model_is_refused():
    with pytest.raises(TypeError, match=r"averages need a module or its parameters, got str$"):
        EMA("model")
    with pytest.raises(TypeError, match="averages need a module or its parameters, got NoneType"):
        EMA(None)


def test_a_finite_run_trains_the_same_with_and_without_averages():
    results = []
    for is_averaged in (False, True):
        model = small_model()
        ema = PostHocEMA(model) if is_averaged else None
        optimizer = torch.optim.Adam(model.parameters())
        for step in range(1, 20):
            model(torch.randn(8, 5, generator=torch.Generator().manual_seed(step))).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            if ema is not None:
                ema.update(step)
        results.append(model.state_dict())
    assert all(torch.equal(results[0][name], results[1][name]) for name in results[0])


def test_an_average_that_is_made_in_the_middle_of_a_run_starts_as_the_model():
    model = small_model()
    ema = PostHocEMA(model)
    walk(model, torch.Generator().manual_seed(1))
    ema.update(5001)
    for width in ema.sigma_rel:
        assert all(
            torch.equal(average, dict(model.named_parameters())[n]) for n, average in ema.averages(width).items()
        )
    assert ema.t == 5001


@pytest.mark.parametrize("clock", [{}, {"step": 3}, {"step": 1, "now": 2, "averaged": 3, "unit": None}, 7, None])
def test_a_state_with_a_damaged_clock_loads_nothing(clock):
    model = small_model()
    ema = PostHocEMA(model)
    run(model, ema, 3)
    state, before = copy.deepcopy(ema.state_dict()), bits(ema)
    for averages in state["averages"]:
        averages["0.weight"].zero_()
    state["clock"] = clock
    with pytest.raises(ValueError, match="the clock of a state must"):
        ema.load_state_dict(state)
    assert_same_bits(before, bits(ema))


def test_numbers_and_tensors_may_take_turns():
    model, other = small_model(), small_model()
    mixed, plain = PostHocEMA(model), PostHocEMA(other)
    run(other, plain, 12)
    generator = torch.Generator().manual_seed(1)
    for step in range(1, 13):
        walk(model, generator)
        mixed.update(torch.tensor(step) if step % 3 else step)
    assert mixed.t == 12
    for width in (0.05, 0.10):
        for name, average in plain.averages(width).items():
            torch.testing.assert_close(mixed.averages(width)[name], average, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"use_ema_warmup": "no"}, TypeError, "`use_ema_warmup` must be None, True or False, got 'no'"),
        ({"update_after_step": float("nan")}, ValueError, "`update_after_step` must be a step, 0 or more, got nan"),
        ({"update_after_step": float("inf")}, ValueError, "`update_after_step` must be a step, 0 or more, got inf"),
    ],
)
def test_a_warm_up_that_is_none_is_refused(options, error, text):
    with pytest.raises(error, match=text):
        EMA(nn.Linear(1, 1), **options)
