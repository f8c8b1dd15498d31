"""The memory of the averages: any size, layout and dtype of parameters gives the same averages."""

import pytest
import torch
from torch import nn

from accelerate_ext.ema.storage import PIECE, SMALL, Storage
from accelerate_ext.ema.weighting import Move

SHAPES = [(), (0, 3), (1,), (3, 5), (SMALL + 1,), (2, PIECE // 2 + 7), (3, PIECE + 1), (16, 8, 3, 3)]


def parameters(dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    return {
        str(shape): nn.Parameter(torch.randn(shape, generator=generator, dtype=torch.float32).to(dtype))
        for shape in SHAPES
    }


def step(held, generator):
    with torch.no_grad():
        for parameter in held.values():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("kept", [None, torch.float64])
def test_every_element_moves_by_its_own_parameter_only(dtype, kept):
    held = parameters(dtype)
    storage = Storage(held, 2, kept)
    wanted = [{name: p.detach().double().clone() for name, p in held.items()} for _ in range(2)]
    generator = torch.Generator().manual_seed(1)
    for _ in range(3):
        step(held, generator)
        storage.move(Move([0.25, 0.5], 0.0))
        for averages, weight in zip(wanted, (0.25, 0.5), strict=True):
            for name, parameter in held.items():
                averages[name] += weight * (parameter.detach().double() - averages[name])
    for index in range(2):
        for name, average in storage.averages(index).items():
            assert average.shape == held[name].shape
            torch.testing.assert_close(average.double(), wanted[index][name], rtol=1e-6, atol=1e-6)


def test_memory_that_is_not_one_stretch_in_the_order_of_the_dimensions_is_no_obstacle():
    generator = torch.Generator().manual_seed(0)
    held = {
        "channels last": nn.Parameter(
            torch.randn(64, 32, 5, 5, generator=generator).to(memory_format=torch.channels_last)
        ),
        "transposed": nn.Parameter(torch.randn(300, 200, generator=generator).t()),
        "every second": nn.Parameter(torch.randn(300, 400, generator=generator)[:, ::2]),
        "broad": nn.Parameter(torch.randn(3, 2 * PIECE + 2, generator=generator)[:, 1:-1]),
    }
    storage = Storage(held, 1)
    for parameter in held.values():
        with torch.no_grad():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    storage.move(Move([1.0], 0.0))
    for name, average in storage.averages(0).items():
        assert torch.equal(average, held[name])
    with torch.no_grad():
        held["channels last"].data = held["channels last"].contiguous() * 2
    storage.bind(held)
    storage.move(Move([1.0], 0.0))
    assert torch.equal(storage.averages(0)["channels last"], held["channels last"])


def test_complex_parameters_are_averaged():
    parameter = nn.Parameter(torch.tensor([1 + 2j, 3 - 1j]))
    storage = Storage({"spectrum": parameter}, 1)
    with torch.no_grad():
        parameter.mul_(3)
    storage.move(Move([0.5], 0.0))
    torch.testing.assert_close(storage.averages(0)["spectrum"], torch.tensor([2 + 4j, 6 - 2j]))


def test_the_averages_do_not_depend_on_how_parameters_are_cut_up():
    """So that the parts of a sharded model have the bits that the whole has."""
    generator = torch.Generator().manual_seed(0)
    start, end = torch.randn(3 * PIECE + 17, generator=generator), torch.randn(3 * PIECE + 17, generator=generator)
    results = []
    for cuts in ([], [1], [5, SMALL, PIECE + 3], list(range(0, 3 * PIECE, 77_777))[1:]):
        held = {str(i): nn.Parameter(part.clone()) for i, part in enumerate(torch.tensor_split(start, cuts))}
        storage = Storage(held, 2)
        with torch.no_grad():
            for parameter, part in zip(held.values(), torch.tensor_split(end, cuts), strict=True):
                parameter.copy_(part)
        storage.move(Move([0.0123, 0.3], 0.0))
        results.append([torch.cat([a.view(-1) for a in storage.averages(index).values()]) for index in range(2)])
    for result in results[1:]:
        assert torch.equal(result[0], results[0][0])
        assert torch.equal(result[1], results[0][1])


def test_an_update_needs_no_memory_that_grows_with_the_model():
    held = {"weight": nn.Parameter(torch.zeros(80, PIECE))}  # 80 MB
    storage = Storage(held, 1)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        storage.move(Move([0.5], 0.0))
        storage.move_if(torch.tensor(True), Move(torch.tensor([0.5], dtype=torch.float64), torch.tensor(0.0)))
    largest = max(event.cpu_memory_usage for event in profiler.events())
    assert largest <= 10 * 2**20
    assert sum(group.gathered.numel() for group in storage.groups) * 4 <= 10 * 2**20
