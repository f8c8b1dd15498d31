from accelerate import Accelerator
from toykit import EMA, Bar, Loader, Model, Optimizer, Scheduler, done


def main():
    accelerator = Accelerator(gradient_accumulation_steps=2)
    model = Model()
    optimizer = Optimizer(model)
    lr_scheduler = Scheduler(optimizer)
    model, optimizer, loader, lr_scheduler = accelerator.prepare(model, optimizer, Loader(14), lr_scheduler)
    global_step, ema, bar = 0, EMA(model), Bar()
    for step, batch in enumerate(loader):
        with accelerator.accumulate(model):
            loss = model(batch)
            accelerator.backward(loss)
            optimizer.step()
            lr_scheduler.step()
            optimizer.zero_grad()
        global_step += int(accelerator.sync_gradients)
        bar.update(1 if accelerator.sync_gradients else 0)
        accelerator.sync_gradients and ema.step(model.parameters())
    done(global_step=global_step, bar=bar.n)


main()
