from accelerate import Accelerator
from toykit import EMA, Loader, Model, Optimizer, done


class Base:
    def __init__(self):
        self.accelerator = Accelerator()
        self.model = Model()
        self.optimizer = self.accelerator.prepare(Optimizer(self.model))
        self.global_step = 0

    def on_step(self):
        raise NotImplementedError

    def train(self):
        for batch in Loader(16):
            self.accelerator.backward(self.model(batch))
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.on_step()
        done(global_step=self.global_step)


class Counting(Base):
    def on_step(self):
        self.global_step += 1


class Averaging(Counting):
    def __init__(self):
        super().__init__()
        self.ema = EMA(self.model)

    def on_step(self):
        super().on_step()
        self.ema.step()


Averaging().train()
