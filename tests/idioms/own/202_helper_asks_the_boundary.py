from accelerate import Accelerator
from toykit import EMA, Bar, Loader, Model, Optimizer, Scheduler, done


def after_step(accelerator, state, ema, loss):
    if accelerator.sync_gradients:
        state["global_step"] += 1
        ema.step()
        accelerator.log({"loss": loss}, step=state["global_step"])


def main():
    accelerator = Accelerator(gradient_accumulation_steps=2)
    model = Model()
    model, optimizer, loader = accelerator.prepare(model, Optimizer(model), Loader(16))
    state, ema = {"global_step": 0}, EMA(model)
    for batch in loader:
        with accelerator.accumulate(model):
            loss = model(batch)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        after_step(accelerator, state, ema, loss)
    done(global_step=state["global_step"])


main()
