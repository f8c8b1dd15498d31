from accelerate import Accelerator
from toykit import EMA, Bar, Loader, Model, Optimizer, Scheduler, done


import itertools


def main():
    accelerator = Accelerator(gradient_accumulation_steps=2)
    model = Model()
    model, optimizer, loader = accelerator.prepare(model, Optimizer(model), Loader(40))
    ema, batches = EMA(model), iter(loader)
    for global_step in itertools.count(1):
        for _ in range(2):
            with accelerator.accumulate(model):
                accelerator.backward(model(next(batches)))
                optimizer.step()
                optimizer.zero_grad()
        ema.step()
        accelerator.log({"loss": 1.0}, step=global_step)
        if global_step >= 6:
            break
    done(global_step=global_step)


main()
