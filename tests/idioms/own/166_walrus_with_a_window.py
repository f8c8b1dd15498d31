from accelerate import Accelerator
from toykit import EMA, Bar, Loader, Model, Optimizer, Scheduler, done


def main():
    accelerator = Accelerator(gradient_accumulation_steps=2)
    model = Model()
    optimizer = Optimizer(model)
    lr_scheduler = Scheduler(optimizer)
    model, optimizer, loader, lr_scheduler = accelerator.prepare(model, optimizer, Loader(14), lr_scheduler)
    global_step, window, bar = 0, 0.0, Bar()
    for step, batch in enumerate(loader):
        with accelerator.accumulate(model):
            loss = model(batch)
            window += loss / 2
            accelerator.backward(loss)
            optimizer.step()
            lr_scheduler.step()
            optimizer.zero_grad()
        if synced := accelerator.sync_gradients:
            global_step += 1
            accelerator.log({"loss": window}, step=global_step)
            window = 0.0
        bar.update(synced)
    done(global_step=global_step)


main()
