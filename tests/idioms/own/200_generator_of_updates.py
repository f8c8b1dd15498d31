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
    def updates():
        for batch in loader:
            with accelerator.accumulate(model):
                accelerator.backward(model(batch))
                optimizer.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                yield batch

    for batch in updates():
        ema.step()
        global_step += 1
        accelerator.log({"loss": 1.0}, step=global_step)
    done(global_step=global_step)


main()
