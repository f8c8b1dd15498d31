from accelerate import Accelerator
from toykit import EMA, Loader, Model, Optimizer, done


class Count:
    n = 0

    def add_(self, k):
        self.n += k


class T:
    def __init__(self):
        self.accelerator = Accelerator()
        self.model = Model()
        self.opt = self.accelerator.prepare(Optimizer(self.model))
        self.ema, self.step = EMA(self.model), Count()

    def fit(self):
        for batch in Loader(12):
            self.accelerator.backward(self.model(batch))
            self.opt.step()
            self.opt.zero_grad()
            self.ema.update()
            self.step.add_(1)
        done(global_step=self.step.n)


T().fit()
