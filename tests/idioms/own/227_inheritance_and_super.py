from accelerate import Accelerator
from toykit import EMA, Bar, Loader, Model, Optimizer, Scheduler, done


class Base:
    def __init__(self):
        self.accelerator = Accelerator(gradient_accumulation_steps=2)
        self.model = Model()
        self.optimizer = self.accelerator.prepare(Optimizer(self.model))
        self.global_step = 0

    def after_update(self):
        self.global_step += 1

    def train_batch(self, batch):
        with self.accelerator.accumulate(self.model):
            self.accelerator.backward(self.model(batch))
            self.optimizer.step()
            self.optimizer.zero_grad()
        if self.accelerator.sync_gradients:
            self.after_update()

    def fit(self):
        for batch in Loader(16):
            self.train_batch(batch)


class WithEma(Base):
    def __init__(self):
        super().__init__()
        self.ema = EMA(self.model)

    def after_update(self):
        super().after_update()
        self.ema.step()

    def fit(self):
        super().fit()
        done(global_step=self.global_step)


WithEma().fit()
