from accelerate import Accelerator
from toykit import Loader, Model, Optimizer, done


class Ticker:
    def __init__(self):
        self.global_step = 0

    def __call__(self):
        self.global_step += 1


class Stepper:
    def __init__(self, accelerator, model, optimizer):
        self.accelerator, self.model, self.optimizer = accelerator, model, optimizer

    def __call__(self, batch):
        self.accelerator.backward(self.model(batch))
        self.optimizer.step()
        self.optimizer.zero_grad()


def main():
    accelerator = Accelerator()
    model = Model()
    optimizer = accelerator.prepare(Optimizer(model))
    tick, update = Ticker(), Stepper(accelerator, model, optimizer)
    for batch in Loader(16):
        update(batch)
        tick()
    done(global_step=tick.global_step)


main()
