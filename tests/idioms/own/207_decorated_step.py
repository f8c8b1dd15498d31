from accelerate import Accelerator
from toykit import EMA, Bar, Loader, Model, Optimizer, Scheduler, done


import functools


def timed(function):
    @functools.wraps(function)
    def inner(*args, **kwargs):
        return function(*args, **kwargs)

    return inner


accelerator = Accelerator(gradient_accumulation_steps=2)
model = Model()
optimizer, loader = accelerator.prepare(Optimizer(model), Loader(16))
ema = EMA(model)
global_step = 0


@timed
def update(batch):
    with accelerator.accumulate(model):
        accelerator.backward(model(batch))
        optimizer.step()
        optimizer.zero_grad()
    return accelerator.sync_gradients


for batch in loader:
    if update(batch):
        global_step += 1
        ema.step()
        accelerator.log({"loss": 1.0}, step=global_step)
done(global_step=global_step)
