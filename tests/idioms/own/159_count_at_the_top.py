from accelerate import Accelerator
from toykit import Loader, Model, Optimizer, done


def main():
    accelerator = Accelerator(gradient_accumulation_steps=2)
    model = Model()
    optimizer, global_step = accelerator.prepare(Optimizer(model)), 0
    for i, batch in enumerate(Loader(8)):
        if accelerator.sync_gradients and i:
            global_step += 1
        with accelerator.accumulate(model):
            accelerator.backward(model(batch))
            optimizer.step()
            optimizer.zero_grad()
    done(attempts=global_step)


main()
