from accelerate import Accelerator
from toykit import Loader, Model, Optimizer, done


class Counter:
    def on_step_end(self, trainer):
        trainer.global_step += 1


class Trainer:
    def __init__(self, callbacks):
        self.accelerator = Accelerator()
        self.model = Model()
        self.optimizer = self.accelerator.prepare(Optimizer(self.model))
        self.callbacks = callbacks
        self.global_step = 0

    def fire(self, event):
        for callback in self.callbacks:
            getattr(callback, event)(self)

    def fit(self):
        for batch in Loader(16):
            self.accelerator.backward(self.model(batch))
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.fire("on_step_end")
        done(global_step=self.global_step)


Trainer([Counter()]).fit()
