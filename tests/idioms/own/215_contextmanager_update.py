from accelerate import Accelerator
from toykit import EMA, Bar, Loader, Model, Optimizer, Scheduler, done


import contextlib


class Engine:
    def __init__(self):
        self.accelerator = Accelerator(gradient_accumulation_steps=2)
        self.model = Model()
        self.optimizer = self.accelerator.prepare(Optimizer(self.model))
        self.ema = EMA(self.model)
        self.steps = 0

    @contextlib.contextmanager
    def update(self):
        with self.accelerator.accumulate(self.model):
            yield
            self.optimizer.step()
            self.optimizer.zero_grad()
        if self.accelerator.sync_gradients:
            self.steps += 1
            self.ema.step()

    def run(self):
        for batch in Loader(16):
            with self.update():
                self.accelerator.backward(self.model(batch))
            if self.accelerator.sync_gradients:
                self.accelerator.log({"loss": 1.0}, step=self.steps)
        done(global_step=self.steps)


Engine().run()
