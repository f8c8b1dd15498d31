from accelerate import Accelerator
from toykit import EMA, Bar, Loader, Model, Optimizer, Scheduler, done


def main():
    accelerator = Accelerator()
    model = Model()
    model, optimizer, loader = accelerator.prepare(model, Optimizer(model), Loader(16))
    ema, bar, every, window, global_step = EMA(model), Bar(), 2, 0.0, 0
    for i, batch in enumerate(loader):
        loss = model(batch) / every
        window += loss
        accelerator.backward(loss)
        if (i + 1) % every != 0 and i + 1 != len(loader):
            continue
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        ema.step()
        bar.update()
        global_step += 1
        accelerator.log({"loss": window}, step=global_step)
        window = 0.0
    done(global_step=global_step)


main()
