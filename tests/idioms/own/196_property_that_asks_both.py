from accelerate import Accelerator
from toykit import EMA, Loader, Model, Optimizer, done


class T:
    def __init__(self):
        self.acc = Accelerator(gradient_accumulation_steps=2)
        self.model = Model()
        self.opt = self.acc.prepare(Optimizer(self.model))
        self.ema, self.n = EMA(self.model), 0

    @property
    def update_applied(self):
        return self.acc.sync_gradients and not self.acc.optimizer_step_was_skipped

    def fit(self):
        for batch in Loader(12):
            with self.acc.accumulate(self.model):
                self.acc.backward(self.model(batch))
                self.opt.step()
                self.opt.zero_grad()
            if self.update_applied:
                self.ema.step()
                self.n += 1
                self.acc.log({"loss": 1.0}, step=self.n)
        done(global_step=self.n)


T().fit()
