from accelerate import Accelerator
from toykit import EMA, Bar, Loader, Model, Optimizer, done


def main(accum=3):
    accelerator = Accelerator()
    model = Model()
    optimizer, ema, bar, steps = accelerator.prepare(Optimizer(model)), EMA(model), Bar(), 0
    running = 0.0
    for i, batch in enumerate(Loader(15)):
        loss = model(batch) / accum
        running += loss
        accelerator.backward(loss)
        if (i + 1) % accum != 0:
            continue
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        steps += 1
        ema.update()
        bar.update(1)
        accelerator.log({"loss": running}, step=steps)
        running = 0.0
    done(global_step=steps)


main()
