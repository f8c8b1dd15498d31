from accelerate import Accelerator
from toykit import EMA, Bar, Loader, Model, Optimizer, Scheduler, done


def main():
    accelerator = Accelerator()
    model = Model()
    optimizer = Optimizer(model)
    lr_scheduler = Scheduler(optimizer)
    model, optimizer, loader, lr_scheduler = accelerator.prepare(model, optimizer, Loader(8), lr_scheduler)
    global_step = 0
    for step, batch in enumerate(loader):
        with accelerator.accumulate(model):
            loss = model(batch)
            accelerator.backward(loss)
            optimizer.step()
            lr_scheduler.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            global_step += 1
        accelerator.log({"loss": loss}, step=global_step)
    done(global_step=global_step)


main()
