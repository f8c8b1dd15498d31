from accelerate import Accelerator
from toykit import EMA, Bar, Loader, Model, Optimizer, Scheduler, done


def main():
    accelerator = Accelerator(gradient_accumulation_steps=2)
    model = Model()
    model, optimizer, loader = accelerator.prepare(model, Optimizer(model), Loader(16))
    ema, global_step = EMA(model), 0
    for batch in loader:
        with accelerator.accumulate(model):
            if accelerator.sync_gradients:
                global_step += 1
            accelerator.backward(model(batch))
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            ema.step()
            accelerator.log({"loss": 1.0}, step=global_step)
    done(global_step=global_step)


main()
