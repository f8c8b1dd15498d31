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
    for batch in loader:
        with accelerator.accumulate(model):
            accelerator.backward(model(batch))
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
                global_step += 1
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            ema.step()
            accelerator.log({"loss": 1.0}, step=global_step)
    done(global_step=global_step)


main()
