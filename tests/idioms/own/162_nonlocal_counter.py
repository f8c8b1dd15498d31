from accelerate import Accelerator
from toykit import EMA, Loader, Model, Optimizer, done


def main():
    accelerator = Accelerator()
    model = Model()
    optimizer, ema = accelerator.prepare(Optimizer(model)), EMA(model)
    global_step = 0

    def count():
        nonlocal global_step
        global_step += 1
        ema.update()

    for batch in Loader(9):
        optimizer.zero_grad()
        accelerator.backward(model(batch))
        optimizer.step()
        count()
        if global_step % 2 == 0:
            accelerator.save_state(f"checkpoint-{global_step}")
    done(global_step=global_step)


main()
