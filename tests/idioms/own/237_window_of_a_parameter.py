from accelerate import Accelerator
from toykit import EMA, Loader, Model, Optimizer, done


class Window:
    def __init__(self):
        self.total, self.step = 0.0, 0

    def add(self, loss):
        self.total += loss

    def flush(self, accelerator):
        self.step += 1
        accelerator.log({"loss": self.total / 2}, step=self.step)
        self.total = 0.0


def train(accelerator, model, optimizer, loader, window: Window):
    for batch in loader:
        with accelerator.accumulate(model):
            loss = model(batch)
            window.add(loss)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            window.flush(accelerator)


def main():
    accelerator = Accelerator(gradient_accumulation_steps=2)
    model = Model()
    model, optimizer, loader = accelerator.prepare(model, Optimizer(model), Loader(16))
    window = Window()
    train(accelerator, model, optimizer, loader, window)
    done(global_step=window.step)


main()
