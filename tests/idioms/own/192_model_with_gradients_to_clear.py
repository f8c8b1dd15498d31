from accelerate import Accelerator
from toykit import EMA, Loader, Model, Optimizer, Scheduler, done


def main():
    accelerator = Accelerator(gradient_accumulation_steps=2)
    model = Model()
    optimizer = Optimizer(model)
    lr_scheduler = Scheduler(optimizer)
    Model.zero_grad = lambda self: None
    model, optimizer, loader, lr_scheduler = accelerator.prepare(model, optimizer, Loader(16), lr_scheduler)
    global_step = 0
    ema = EMA(model)
    for step, batch in enumerate(loader):
        with accelerator.accumulate(model):
            loss = model(batch)
            accelerator.backward(loss)
            optimizer.step()
            lr_scheduler.step()
            optimizer.zero_grad()
        model.zero_grad()
        if accelerator.sync_gradients:
            ema.step()
            global_step += 1
            accelerator.log({"loss": 1.0}, step=global_step)
    done(global_step=global_step)


main()
