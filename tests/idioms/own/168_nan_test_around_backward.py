import math

from accelerate import Accelerator
from toykit import EMA, Loader, Model, Optimizer, done


def main():
    accelerator = Accelerator()
    model = Model()
    optimizer, ema, global_step = accelerator.prepare(Optimizer(model)), EMA(model), 0
    for batch in Loader(10):
        loss = model(batch) if batch % 4 else float("nan")
        if math.isnan(loss):
            accelerator.print("bad loss")
        else:
            accelerator.backward(loss)
            optimizer.step()
            ema.update()
            global_step += 1
        optimizer.zero_grad()
    done(global_step=global_step)


main()
