from accelerate import Accelerator
from toykit import EMA, Loader, Model, Optimizer, Scheduler, done


def main():
    accelerator = Accelerator(gradient_accumulation_steps=2)
    model = Model()
    optimizer = Optimizer(model)
    lr_scheduler = Scheduler(optimizer)
    model, optimizer, loader, lr_scheduler = accelerator.prepare(model, optimizer, Loader(16), lr_scheduler)
    global_step, total = 0, 0.0
    ema = EMA(model)
    for batch in loader:
        with accelerator.accumulate(model):
            loss = model(batch)
            total += loss / 2
            accelerator.backward(loss)
        if not accelerator.sync_gradients:
            continue
        optimizer.step()
        lr_scheduler.step()
        optimizer.zero_grad()
        ema.step()
        global_step += 1
        accelerator.log({"loss": total}, step=global_step)
        total = 0.0
    done(global_step=global_step)


main()
