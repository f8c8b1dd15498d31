from accelerate import Accelerator
from toykit import EMA, Bar, Loader, Model, Optimizer, Scheduler, done


def main():
    accelerator = Accelerator()
    model = Model()
    optimizer, loader, lr_scheduler = accelerator.prepare(Optimizer(model), Loader(13), Scheduler(Optimizer(model)))
    ema, bar, completed, accum = EMA(model), Bar(), 0, 3
    for step, batch in enumerate(loader, start=1):
        is_last = step == len(loader)
        should_update = step % accum == 0 or is_last
        accelerator.backward(model(batch) / accum)
        if should_update:
            optimizer.step()
            optimizer.zero_grad()
        if should_update:
            bar.update(1)
            completed += 1
            ema.update()
            accelerator.log({"loss": 1.0}, step=completed)
    done(global_step=completed)


main()
