from accelerate import Accelerator
from toykit import EMA, Loader, Model, Optimizer, done


class T:
    def __init__(self):
        self.accelerator = Accelerator(gradient_accumulation_steps=2)
        self.model = Model()
        self.opt = Optimizer(self.model)
        self.model, self.opt = map(self.accelerator.prepare, (self.model, self.opt))
        self.ema, self.step = EMA(self.model), 0

    def fit(self):
        for batch in Loader(12):
            with self.accelerator.accumulate(self.model):
                self.accelerator.backward(self.model(batch))
                self.opt.step()
                self.opt.zero_grad()
            if self.accelerator.sync_gradients:
                self.ema.step()
                self.step += 1
                self.accelerator.log({"loss": 1.0}, step=self.step)
        done(global_step=self.step)


T().fit()
