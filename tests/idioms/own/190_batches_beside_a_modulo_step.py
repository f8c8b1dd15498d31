from accelerate import Accelerator
from toykit import Loader, Model, Optimizer, Scheduler, done


def main():
    accelerator = Accelerator(gradient_accumulation_steps=1)
    model = Model()
    optimizer = Optimizer(model)
    lr_scheduler = Scheduler(optimizer)
    model, optimizer, loader, lr_scheduler = accelerator.prepare(model, optimizer, Loader(16), lr_scheduler)
    overall = 0
    for step, batch in enumerate(loader):
        loss = model(batch) / 2
        accelerator.backward(loss)
        if step % 2 == 0:
            optimizer.step()
            lr_scheduler.step()
            optimizer.zero_grad()
        overall += 1
        if overall % 4 == 0:
            accelerator.save_state(f"step_{overall}")
    done(overall=overall)


main()
