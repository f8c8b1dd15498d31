from accelerate import Accelerator
from toykit import EMA, Bar, Loader, Model, Optimizer, Scheduler, done


def main():
    accelerator = Accelerator(gradient_accumulation_steps=2)
    model = Model()
    model, optimizer, loader = accelerator.prepare(model, Optimizer(model), Loader(16))
    ema, global_step, window = EMA(model), 0, []
    for batch in loader:
        with accelerator.accumulate(model):
            loss = model(batch)
            window.append(loss)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        is_update = accelerator.sync_gradients
        if not is_update:
            continue
        try:
            global_step += 1
            ema.step()
        finally:
            mean = sum(window) / len(window)
            window.clear()
        accelerator.log({"loss": mean, "n": 1.0}, step=global_step)
    done(global_step=global_step)


main()
