from accelerate import Accelerator
from toykit import EMA, Bar, Loader, Model, Optimizer, Scheduler, done


def tqdm(iterable, **kwargs):
    return iterable


def main():
    accelerator = Accelerator()
    model = Model()
    model, optimizer, loader = accelerator.prepare(model, Optimizer(model), Loader(8))
    ema = EMA(model)
    batches = iter(loader)
    global_step = 0
    for step in tqdm(range(8), desc="train"):
        batch = next(batches)
        accelerator.backward(model(batch))
        optimizer.step()
        optimizer.zero_grad()
        ema.step()
        global_step = step + 1
        accelerator.log({"loss": 1.0}, step=step)
        if step % 4 == 0:
            accelerator.save_state(f"s{step}")
    done(global_step=global_step)


main()
