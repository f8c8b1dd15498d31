from accelerate import Accelerator
from toykit import EMA, Loader, Model, Optimizer, done


class T:
    def __init__(self):
        self.accelerator = Accelerator(gradient_accumulation_steps=2)
        self.model = Model()
        self.opt = self.accelerator.prepare(Optimizer(self.model))
        self.ema, self.step, self.loss = EMA(self.model), 0, 0.0

    def boundary(self):
        self.ema.step()
        self.step += 1
        self.accelerator.log({"loss": self.loss}, step=self.step)
        self.loss = 0.0

    def fit(self):
        for batch in Loader(12):
            with self.accelerator.accumulate(self.model):
                loss = self.model(batch)
                self.loss += loss / 2
                self.accelerator.backward(loss)
                self.opt.step()
                self.opt.zero_grad()
            if self.accelerator.sync_gradients:
                self.boundary()
        done(global_step=self.step)


T().fit()
