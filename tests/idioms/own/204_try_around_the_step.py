from accelerate import Accelerator
from toykit import EMA, Bar, Loader, Model, Optimizer, Scheduler, done


def main():
    accelerator = Accelerator()
    model = Model()
    model, optimizer, loader = accelerator.prepare(model, Optimizer(model), Loader(8))
    ema, global_step, failures = EMA(model), 0, 0
    for batch in loader:
        try:
            accelerator.backward(model(batch))
            optimizer.step()
        except RuntimeError:
            failures += 1
            optimizer.zero_grad()
            continue
        else:
            ema.step()
            global_step += 1
            accelerator.log({"loss": 1.0}, step=global_step)
        finally:
            optimizer.zero_grad()
    done(global_step=global_step)


main()
