from accelerate import Accelerator
from toykit import EMA, Bar, Loader, Model, Optimizer, done


def main():
    accelerator = Accelerator(gradient_accumulation_steps=2)
    model = Model()
    optimizer, ema, bar = accelerator.prepare(Optimizer(model)), EMA(model), Bar()
    counts = {"updates": 0}

    def one(batch):
        with accelerator.accumulate(model):
            accelerator.backward(model(batch))
            optimizer.step()
            optimizer.zero_grad()
        if not accelerator.sync_gradients:
            return
        counts["updates"] += 1
        ema.update()
        bar.update(1)

    for batch in Loader(12):
        one(batch)
    done(global_step=counts["updates"])


main()
