from accelerate import Accelerator
from toykit import EMA, Loader, Model, Optimizer, done


class Base:
    def __init__(self):
        self.accelerator = Accelerator()
        self.model = Model()
        self.optimizer = self.accelerator.prepare(Optimizer(self.model))
        self.global_step = 0

    def update(self, batch):
        raise NotImplementedError

    def train(self):
        for batch in Loader(16):
            self.update(batch)
            self.global_step += 1
        done(global_step=self.global_step)


class Plain(Base):
    def update(self, batch):
        self.accelerator.backward(self.model(batch))
        self.optimizer.step()
        self.optimizer.zero_grad()


class Twice(Base):
    def update(self, batch):
        self.accelerator.backward(self.model(batch))
        self.accelerator.backward(self.model(batch))
        self.optimizer.step()
        self.optimizer.zero_grad()


Twice().train()
