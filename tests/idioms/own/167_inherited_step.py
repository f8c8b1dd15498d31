from accelerate import Accelerator
from toykit import EMA, Loader, Model, Optimizer, done


class Base:
    def __init__(self):
        self.accelerator = Accelerator(gradient_accumulation_steps=2)
        self.model = Model()
        self.optimizer = self.accelerator.prepare(Optimizer(self.model))

    def optimize(self, loss):
        self.accelerator.backward(loss)
        self.optimizer.step()
        self.optimizer.zero_grad()


class Trainer(Base):
    def run(self):
        self.ema, self.num_updates = EMA(self.model), 0
        for batch in Loader(10):
            with self.accelerator.accumulate(self.model):
                self.optimize(self.model(batch))
            if self.accelerator.sync_gradients and self.accelerator.is_main_process:
                self.ema.update()
            if self.accelerator.sync_gradients:
                self.num_updates += 1
        done(global_step=self.num_updates)


Trainer().run()
