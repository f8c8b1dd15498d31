from accelerate import Accelerator
from toykit import Loader, Model, Optimizer, done


class Lomo(Optimizer):
    pass


def main():
    accelerator = Accelerator()
    model = Model()
    optimizer, global_step = accelerator.prepare(Lomo(model)), 0
    for batch in Loader(6):
        with accelerator.accumulate(model):
            accelerator.backward(model(batch))
            optimizer.step()
        if accelerator.sync_gradients:
            global_step += 1
    done(global_step=global_step)


main()
