from accelerate import Accelerator
from toykit import EMA, Bar, Loader, Model, Optimizer, Scheduler, done


def main():
    accelerator = Accelerator(gradient_accumulation_steps=2)
    model = Model()
    optimizer = Optimizer(model)
    lr_scheduler = Scheduler(optimizer)
    model, optimizer, loader, lr_scheduler = accelerator.prepare(model, optimizer, Loader(14), lr_scheduler)
    global_step, train_loss, num_batches = 0, 0.0, 0
    for step, batch in enumerate(loader):
        with accelerator.accumulate(model):
            loss = model(batch)
            train_loss += loss
            num_batches += 1
            accelerator.backward(loss)
            optimizer.step()
            lr_scheduler.step()
            optimizer.zero_grad()
        boundary = accelerator.sync_gradients
        if boundary:
            global_step = global_step + 1
            train_loss, num_batches = 0.0, 0
        if boundary and global_step % 3 == 0:
            accelerator.save_state(f"checkpoint-{global_step}")
    done(global_step=global_step)


main()
