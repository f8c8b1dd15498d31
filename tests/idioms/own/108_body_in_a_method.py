from accelerate import Accelerator
from toykit import EMA, Loader, Model, Optimizer, done


class Trainer:
    def __init__(self):
        self.accelerator = Accelerator(gradient_accumulation_steps=2)
        self.model = Model()
        self.ema = EMA(self.model)
        self.optimizer = self.accelerator.prepare(Optimizer(self.model))
        self.global_step = 0

    def after_update(self, loss):
        self.ema.step(self.model.parameters())
        self.global_step += 1
        self.accelerator.log({"loss": loss}, step=self.global_step)

    def train(self):
        for batch in Loader(12):
            with self.accelerator.accumulate(self.model):
                loss = self.model(batch)
                self.accelerator.backward(loss)
                self.optimizer.step()
                self.optimizer.zero_grad()
            if self.accelerator.sync_gradients:
                self.after_update(loss)
            if self.global_step % 2 == 0:
                self.accelerator.save_state(f"checkpoint-{self.global_step}")
        done(global_step=self.global_step)


Trainer().train()
