from accelerate import Accelerator
from toykit import EMA, Bar, Loader, Model, Optimizer, Scheduler, done


def main():
    accelerator = Accelerator(gradient_accumulation_steps=2)
    model = Model()
    optimizer = Optimizer(model)
    lr_scheduler = Scheduler(optimizer)
    model, optimizer, loader, lr_scheduler = accelerator.prepare(model, optimizer, Loader(14), lr_scheduler)
    completed_steps, ema, accum = 0, EMA(model), 1
    for step, batch in enumerate(loader):
        accelerator.backward(model(batch))
        if (step + 1) % accum == 0 or step == len(loader) - 1:
            optimizer.step()
            lr_scheduler.step()
            optimizer.zero_grad()

        if (step + 1) % accum == 0 or step == len(loader) - 1:
            ema.update()
            completed_steps += 1
        if completed_steps % 2 == 0 and completed_steps > 0:
            accelerator.save_state(f"step_{completed_steps}")
    done(global_step=completed_steps)


main()
