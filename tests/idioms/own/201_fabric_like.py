from accelerate import Accelerator
from toykit import EMA, Bar, Loader, Model, Optimizer, Scheduler, done


class Harness:
    """Hides the accelerator behind verbs of its own, as Fabric does."""

    def __init__(self, steps):
        self._accelerator = Accelerator(gradient_accumulation_steps=steps)

    def setup(self, *objects):
        return self._accelerator.prepare(*objects)

    def backward(self, loss):
        self._accelerator.backward(loss)

    @property
    def is_boundary(self):
        return self._accelerator.sync_gradients

    def accumulate(self, model):
        return self._accelerator.accumulate(model)

    def log_dict(self, values, step):
        self._accelerator.log(values, step=step)


def main():
    harness = Harness(2)
    model = Model()
    optimizer = Optimizer(model)
    model, optimizer, loader = harness.setup(model, optimizer, Loader(16))
    ema, global_step = EMA(model), 0
    for batch in loader:
        with harness.accumulate(model):
            harness.backward(model(batch))
            optimizer.step()
            optimizer.zero_grad()
        if harness.is_boundary:
            global_step += 1
            ema.step()
            harness.log_dict({"loss": 1.0}, global_step)
    done(global_step=global_step)


main()
