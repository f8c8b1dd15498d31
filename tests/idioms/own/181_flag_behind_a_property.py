from accelerate import Accelerator
from toykit import EMA, Loader, Model, Optimizer, done


class T:
    def __init__(self):
        self.accelerator = Accelerator(gradient_accumulation_steps=2)
        self.model = Model()
        self.opt = self.accelerator.prepare(Optimizer(self.model))
        self.ema, self.step = EMA(self.model), 0

    @property
    def synced(self):
        return self.accelerator.sync_gradients

    def fit(self):
        for batch in Loader(12):
            with self.accelerator.accumulate(self.model):
                self.accelerator.backward(self.model(batch))
                if self.synced:
                    self.accelerator.clip_grad_norm_(self.model.parameters(), 1.0)
                self.opt.step()
                self.opt.zero_grad()
            if self.synced:
                self.ema.step()
                self.step += 1
                self.accelerator.log({"loss": 1.0}, step=self.step)
        done(global_step=self.step)


T().fit()
