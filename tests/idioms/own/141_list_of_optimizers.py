from accelerate import Accelerator
from toykit import Loader, Model, Optimizer, done


def main():
    accelerator = Accelerator(gradient_accumulation_steps=2)
    model = Model()
    optimizers = [accelerator.prepare(Optimizer(model, name)) for name in ("main", "other")]
    global_step = 0
    for batch in Loader(8):
        with accelerator.accumulate(model):
            accelerator.backward(model(batch))
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
        if accelerator.sync_gradients:
            global_step += 1
    done(global_step=global_step)


main()
