from accelerate import Accelerator
from toykit import EMA, Bar, Loader, Model, Optimizer, Scheduler, done


def main():
    accelerator = Accelerator(gradient_accumulation_steps=2)
    model = Model()
    optimizer = Optimizer(model)
    lr_scheduler = Scheduler(optimizer)
    model, optimizer, loader, lr_scheduler = accelerator.prepare(model, optimizer, Loader(14), lr_scheduler)
    global_step, ema = 0, EMA(model)
    for step, batch in enumerate(loader):
        with accelerator.accumulate(model):
            loss = model(batch)
            accelerator.backward(loss)
            finite = batch not in (3, 8)
            if finite:
                optimizer.step()
                lr_scheduler.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            global_step += 1
            ema.step(model.parameters())
    done(global_step=global_step)


main()
