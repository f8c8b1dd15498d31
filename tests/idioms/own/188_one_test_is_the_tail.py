from accelerate import Accelerator
from toykit import EMA, Loader, Model, Optimizer, Scheduler, done


def main():
    accelerator = Accelerator(gradient_accumulation_steps=1)
    model = Model()
    optimizer = Optimizer(model)
    lr_scheduler = Scheduler(optimizer)
    model, optimizer, loader, lr_scheduler = accelerator.prepare(model, optimizer, Loader(16), lr_scheduler)
    global_step, acc_loss = 0, 0.0
    ema = EMA(model)
    for step, batch in enumerate(loader):
        loss = model(batch) / 2
        acc_loss += loss
        accelerator.backward(loss)
        if (step + 1) % 2 == 0:
            optimizer.step()
            optimizer.zero_grad()
        if (step + 1) % 2 == 0:
            ema.step()
            global_step += 1
            accelerator.log({"loss": acc_loss}, step=global_step)
            acc_loss = 0.0
    done(global_step=global_step)


main()
