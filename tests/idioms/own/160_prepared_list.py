from accelerate import Accelerator
from toykit import Loader, Model, Optimizer, done


def main():
    accelerator = Accelerator(gradient_accumulation_steps=2)
    model = Model()
    things = accelerator.prepare(model, Optimizer(model), Loader(12))
    model, optimizer, loader = things
    global_step = 0
    for batch in loader:
        with accelerator.accumulate(model):
            accelerator.backward(model(batch))
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            global_step += 1
    done(global_step=global_step)


main()
