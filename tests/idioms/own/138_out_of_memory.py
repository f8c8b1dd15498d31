from accelerate import Accelerator
from toykit import EMA, Loader, Model, Optimizer, done


def main():
    accelerator = Accelerator(gradient_accumulation_steps=2)
    model = Model()
    optimizer, ema, global_step = accelerator.prepare(Optimizer(model)), EMA(model), 0
    for batch in Loader(12):
        try:
            with accelerator.accumulate(model):
                accelerator.backward(model(batch))
                optimizer.step()
                optimizer.zero_grad()
        except RuntimeError:
            optimizer.zero_grad()
            continue
        if accelerator.sync_gradients:
            global_step += 1
            ema.update()
    done(global_step=global_step)


main()
