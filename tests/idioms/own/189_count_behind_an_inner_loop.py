from accelerate import Accelerator
from toykit import EMA, Loader, Model, Optimizer, Scheduler, done


def main():
    accelerator = Accelerator(gradient_accumulation_steps=2)
    model = Model()
    optimizer = Optimizer(model)
    lr_scheduler = Scheduler(optimizer)
    model, optimizer, loader, lr_scheduler = accelerator.prepare(model, optimizer, Loader(16), lr_scheduler)
    global_step = 0
    ema = EMA(model)
    it = iter(loader)
    for _ in range(8):
        for _ in range(2):
            with accelerator.accumulate(model):
                loss = model(next(it))
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
        ema.step()
        global_step += 1
        accelerator.log({"loss": loss}, step=global_step)
    done(global_step=global_step)


main()
