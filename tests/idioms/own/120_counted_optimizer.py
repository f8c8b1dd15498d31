from accelerate import Accelerator
from toykit import EMA, Loader, Model, Optimizer, done


class Trainer:
    def __init__(self):
        self.accelerator = Accelerator(gradient_accumulation_steps=2)
        self.model, self.tokens = Model("net"), Model("tok")
        self.opt, self.opt_pt = self.accelerator.prepare(Optimizer(self.model, "main"), Optimizer(self.tokens, "pt"))
        self.ema, self.global_step = EMA(self.model), 0

    def train(self):
        for batch in Loader(12):
            with self.accelerator.accumulate(self.model):
                self.accelerator.backward(self.model(batch))
                self.opt.step()
                self.opt_pt.step()
                self.opt.zero_grad()
                self.opt_pt.zero_grad()
                if self.accelerator.sync_gradients:
                    self.ema.update(self.model)
                    self.global_step += 1
        done(global_step=self.global_step)


Trainer().train()
