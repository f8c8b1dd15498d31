from accelerate import Accelerator
from toykit import Loader, Model, Optimizer, Scheduler, done


def main():
    accelerator = Accelerator(gradient_accumulation_steps=1)
    model = Model()
    optimizer = Optimizer(model)
    lr_scheduler = Scheduler(optimizer)
    model, optimizer, loader, lr_scheduler = accelerator.prepare(model, optimizer, Loader(16), lr_scheduler)
    global_step = 0
    zeroed = []
    for step, batch in enumerate(loader):
        accelerator.backward(model(batch))
        if (global_step + 1) % 2 == 0:
            optimizer.step()
            lr_scheduler.step()
        if (global_step + 1) % 2 == 0:
            optimizer.zero_grad(set_to_none=True)
            zeroed.append(step)
        if accelerator.sync_gradients:
            global_step += 1
            accelerator.log({"loss": 1.0}, step=global_step)
    done(n=global_step, zeros=len(zeroed))


main()
