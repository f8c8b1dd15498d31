from accelerate import Accelerator
from toykit import EMA, Bar, Loader, Model, Optimizer, Scheduler, done


def main():
    accelerator = Accelerator(gradient_accumulation_steps=2)
    model = Model()
    optimizer = Optimizer(model)
    lr_scheduler = Scheduler(optimizer)
    model, optimizer, loader, lr_scheduler = accelerator.prepare(model, optimizer, Loader(14), lr_scheduler)
    global_step, ema, samples_seen = 0, EMA(model), 0
    for step, batch in enumerate(loader):
        with accelerator.accumulate(model):
            loss = model(batch)
            accelerator.backward(loss)
            optimizer.step()
            lr_scheduler.step()
        if accelerator.sync_gradients:
            optimizer.zero_grad()
            ema.step(model.parameters())
            global_step += 1
            samples_seen += 8
    done(global_step=global_step, samples_seen=samples_seen)


main()
