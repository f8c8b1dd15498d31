from accelerate import Accelerator
from toykit import EMA, Loader, Model, Optimizer, Scheduler, done


def main():
    accelerator = Accelerator(gradient_accumulation_steps=1)
    model = Model()
    optimizer = Optimizer(model)
    lr_scheduler = Scheduler(optimizer)
    model, optimizer, loader, lr_scheduler = accelerator.prepare(model, optimizer, Loader(16), lr_scheduler)
    global_step = 0
    ema = EMA(model)
    for epoch in range(2):
        for step, batch in enumerate(loader):
            loss = model(batch)
            accelerator.backward(loss)
            optimizer.step()
            lr_scheduler.step()
            optimizer.zero_grad()
            ema.update()
            global_step = epoch * len(loader) + step + 1
            accelerator.log({"loss": loss}, step=global_step)
    done(global_step=global_step)


main()
