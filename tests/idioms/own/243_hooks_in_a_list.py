from accelerate import Accelerator
from toykit import EMA, Loader, Model, Optimizer, done


class CountHook:
    def __call__(self, trainer):
        trainer.global_step += 1


class EmaHook:
    def __init__(self, model):
        self.ema = EMA(model)

    def __call__(self, trainer):
        self.ema.step()


class Trainer:
    def __init__(self):
        self.accelerator = Accelerator()
        self.model = Model()
        self.optimizer = self.accelerator.prepare(Optimizer(self.model))
        self.hooks = [CountHook(), EmaHook(self.model)]
        self.global_step = 0

    def fit(self):
        for batch in Loader(16):
            self.accelerator.backward(self.model(batch))
            self.optimizer.step()
            self.optimizer.zero_grad()
            for hook in self.hooks:
                hook(self)
        done(global_step=self.global_step)


Trainer().fit()
