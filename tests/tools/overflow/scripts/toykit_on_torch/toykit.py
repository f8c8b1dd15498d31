"""The toy kit of the idiom scripts, on torch: the same names, so that the same loops run with the real Accelerate."""

import copy
import json

import torch
from tqdm import tqdm

RECORD = {"backward_hooks": []}


class Model(torch.nn.Module):
    def __init__(self, name="model"):
        super().__init__()
        torch.manual_seed(len(name))
        self.name, self.version = name, 0
        self.layer = torch.nn.Linear(3, 1)

    def forward(self, batch):
        value = torch.as_tensor(batch, dtype=torch.float32).reshape(-1).mean()
        features = torch.stack([torch.sin(value), torch.cos(value), value / 10])
        return self.layer(features).square().mean() + 1 + value % 5


def Optimizer(model, name="main", lr=0.01):
    return torch.optim.AdamW(model.parameters(), lr=lr, foreach=False)


def Scheduler(optimizer):
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))


class EMA:
    def __init__(self, model):
        self.online = [model]
        self.average = copy.deepcopy(model)
        self.calls = 0

    @torch.no_grad()
    def step(self, *args, **kwargs):
        self.calls += 1
        for slow, fast in zip(self.average.parameters(), self.online[0].parameters(), strict=True):
            slow.lerp_(fast, 0.1)

    update = step


def Bar(total=None, **kwargs):
    return tqdm(total=len(total) if isinstance(total, range) else total, **kwargs)


def Loader(n):
    return torch.utils.data.DataLoader(list(range(n)), batch_size=1)


def done(**counters):
    print(json.dumps({name: int(value) for name, value in counters.items()}))
