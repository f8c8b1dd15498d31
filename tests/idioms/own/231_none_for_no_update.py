from accelerate import Accelerator
from toykit import EMA, Bar, Loader, Model, Optimizer, Scheduler, done


def train_one(accelerator, model, optimizer, batch, state):
    with accelerator.accumulate(model):
        loss = model(batch)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    if not accelerator.sync_gradients:
        return None
    state.global_step += 1
    return loss


class State:
    global_step = 0


def main():
    accelerator = Accelerator(gradient_accumulation_steps=2)
    model = Model()
    model, optimizer, loader = accelerator.prepare(model, Optimizer(model), Loader(16))
    state, ema = State(), EMA(model)
    for batch in loader:
        loss = train_one(accelerator, model, optimizer, batch, state)
        if loss is None:
            continue
        ema.step()
        accelerator.log({"loss": loss}, step=state.global_step)
    done(global_step=state.global_step)


main()
