from accelerate import Accelerator
from toykit import EMA, Loader, Model, Optimizer, done


class TrainState:
    def __init__(self):
        self.global_step = 0

    def advance(self):
        self.global_step += 1


class Average:
    def __init__(self, model):
        self.inner = EMA(model)

    def after_update(self):
        self.inner.step()


def train(accelerator, model, optimizer, loader, state, average):
    for batch in loader:
        accelerator.backward(model(batch))
        optimizer.step()
        optimizer.zero_grad()
        state.advance()
        average.after_update()


def main():
    accelerator = Accelerator()
    model = Model()
    model, optimizer, loader = accelerator.prepare(model, Optimizer(model), Loader(16))
    state = TrainState()
    train(accelerator, model, optimizer, loader, state, Average(model))
    done(global_step=state.global_step)


main()
