from accelerate import Accelerator
from toykit import EMA, Loader, Model, Optimizer, Scheduler, done


def main():
    accelerator = Accelerator()
    model = Model()
    optimizer = Optimizer(model)
    lr_scheduler = Scheduler(optimizer)
    model, optimizer = accelerator.prepare(model, optimizer)
    ema, global_step = EMA(model), 0
    for batch in Loader(9):
        with accelerator.accumulate(model):
            accelerator.backward(model(batch))
            optimizer.step()
            lr_scheduler.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            global_step += 1
            ema.update()
    done(global_step=global_step)


main()
