"""Reading `.pt` files piece by piece, whatever the order of a tensor's memory."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from accelerate_ext.ema.torch_file import TorchReader


class Elements(TorchDispatchMode):
    """Counts the elements that operations write."""

    def __init__(self):
        super().__init__()
        self.written = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func in (torch.ops.aten.clone.default, torch.ops.aten.copy_.default):
            self.written += result.numel()
        return result


def test_a_tensor_whose_memory_has_another_order_is_put_in_order_once(tmp_path):
    weight = torch.randn(64, 32, 3, 3).to(memory_format=torch.channels_last)
    torch.save({"weight": weight, "turned": torch.randn(50, 40).T, "plain": torch.randn(7)}, tmp_path / "model.pt")
    reader, size = TorchReader(tmp_path / "model.pt"), weight.numel()
    got = torch.empty(size, dtype=torch.float64)
    with Elements() as elements:
        for start in range(0, size, 1000):
            reader.read("weight", start, min(size, start + 1000), got[start : start + 1000])
    assert torch.equal(got, weight.reshape(-1).double())
    assert elements.written == 2 * size
    for name in ("turned", "plain", "weight"):
        stored = torch.load(tmp_path / "model.pt", weights_only=True)[name].reshape(-1)
        out = torch.empty(stored.numel())
        reader.read(name, 0, stored.numel(), out)
        assert torch.equal(out, stored)
    reader.close()
