from accelerate import Accelerator
from toykit import EMA, Loader, Model, Optimizer, done


class T:
    def __init__(self, fused):
        self.fused = fused
        self.accelerator = Accelerator(gradient_accumulation_steps=2)
        self.model = Model()
        self.opt = self.accelerator.prepare(Optimizer(self.model))
        self.ema, self.n = EMA(self.model), 0

    def update(self, batch):
        with self.accelerator.accumulate(self.model):
            self.accelerator.backward(self.model(batch))
            if not self.fused:
                self.opt.step()
                self.opt.zero_grad()
        if self.accelerator.sync_gradients:
            self.ema.step()
            self.n += 1

    def fit(self):
        for batch in Loader(12):
            self.update(batch)
        done(global_step=self.n)


T(False).fit()
