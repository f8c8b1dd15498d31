from accelerate import Accelerator
from toykit import EMA, Bar, Loader, Model, Optimizer, done


def train_step(accelerator, model, optimizer, batch):
    with accelerator.accumulate(model):
        loss = model(batch)
        accelerator.backward(loss)
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return loss


def main():
    accelerator = Accelerator(gradient_accumulation_steps=2)
    model = Model()
    model, optimizer, loader = accelerator.prepare(model, Optimizer(model), Loader(14))
    ema, progress, state = EMA(model), Bar(), {"global_step": 0}
    for batch in loader:
        loss = train_step(accelerator, model, optimizer, batch)
        if accelerator.sync_gradients:
            progress.update(1)
            state["global_step"] += 1
            ema.step(model.parameters())
            accelerator.log({"loss": loss}, step=state["global_step"])
    done(global_step=state["global_step"])


main()
