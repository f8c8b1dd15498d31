from accelerate import Accelerator
from toykit import EMA, Bar, Loader, Model, Optimizer, Scheduler, done


def main():
    accelerator = Accelerator(gradient_accumulation_steps=2)
    model = Model()
    optimizer = Optimizer(model)
    lr_scheduler = Scheduler(optimizer)
    model, optimizer, loader, lr_scheduler = accelerator.prepare(model, optimizer, Loader(14), lr_scheduler)
    global_step, window, count = 0, 0.0, 0
    for step, batch in enumerate(loader):
        with accelerator.accumulate(model):
            loss = model(batch)
            window += loss
            count += 1
            accelerator.backward(loss)
            optimizer.step()
            lr_scheduler.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            avg = accelerator.gather(window)
            global_step += 1
            accelerator.log({"loss": avg / count}, step=global_step)
            window, count = 0.0, 0
            if global_step % 3 == 0: accelerator.save_state(f"checkpoint-{global_step}")
    done(global_step=global_step)


main()
