from accelerate import Accelerator
from toykit import EMA, Bar, Loader, Model, Optimizer, Scheduler, done


def main():
    accelerator = Accelerator(gradient_accumulation_steps=2)
    model = Model()
    optimizer = Optimizer(model)
    lr_scheduler = Scheduler(optimizer)
    model, optimizer, loader, lr_scheduler = accelerator.prepare(model, optimizer, Loader(20), lr_scheduler)
    global_step, ema, window = 0, EMA(model), 0.0
    for step, batch in enumerate(loader):
        with accelerator.accumulate(model):
            loss = model(batch)
            window += loss / 2
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                lr_scheduler.step()
                optimizer.zero_grad()
                # one more update
                ema.update()
                global_step += 1
                accelerator.log({"loss": window}, step=global_step)
                window = 0.0
        if global_step >= 6:
            break
    done(global_step=global_step)


main()
