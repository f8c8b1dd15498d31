from accelerate import Accelerator
from toykit import EMA, Bar, Loader, Model, Optimizer, Scheduler, done


def main():
    accelerator = Accelerator()
    model = Model()
    optimizer = Optimizer(model)
    lr_scheduler = Scheduler(optimizer)
    model, optimizer, loader, lr_scheduler = accelerator.prepare(model, optimizer, Loader(10), lr_scheduler)
    global_step, save_at = 0, (1, 3)
    for step, batch in enumerate(loader):
        with accelerator.accumulate(model):
            loss = model(batch)
            accelerator.backward(loss)
            optimizer.step()
            lr_scheduler.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            global_step += 1
        if global_step in save_at and accelerator.is_main_process:
            accelerator.save_state(f"checkpoint-{global_step}")
        if accelerator.is_main_process:
            if global_step == 5 or not global_step % 4:
                accelerator.log({"loss": loss}, step=global_step)
    done(global_step=global_step)


main()
