from accelerate import Accelerator
from toykit import EMA, Loader, Model, Optimizer, done


def main():
    accelerator = Accelerator(gradient_accumulation_steps=2)
    model, head = Model("main"), Model("head")
    global_step, head_steps, ema = 0, 0, EMA(model)
    optimizer = accelerator.prepare(Optimizer(head, "head"))
    for batch in Loader(6):
        with accelerator.accumulate(head):
            accelerator.backward(head(batch))
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            head_steps += 1
    optimizer = accelerator.prepare(Optimizer(model, "main"))
    for batch in Loader(12):
        with accelerator.accumulate(model):
            accelerator.backward(model(batch))
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            ema.update()
            global_step += 1
    done(global_step=global_step, head_steps=head_steps)


main()
