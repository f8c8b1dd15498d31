from accelerate import Accelerator
from toykit import EMA, Bar, Loader, Model, Optimizer, Scheduler, done


class Trainer:
    def __init__(self):
        self.accelerator = Accelerator(gradient_accumulation_steps=2)
        self.model = Model()
        self.ema = EMA(self.model)
        self.optimizer = Optimizer(self.model)
        self.lr_scheduler = Scheduler(self.optimizer)
        self.model, self.optimizer, self.loader, self.lr_scheduler = self.accelerator.prepare(
            self.model, self.optimizer, Loader(16), self.lr_scheduler
        )
        self.global_step, self.running = 0, 0.0

    def training_step(self, batch):
        with self.accelerator.accumulate(self.model):
            loss = self.model(batch)
            self.accelerator.backward(loss)
            if self.accelerator.sync_gradients:
                self.accelerator.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.lr_scheduler.step()
            self.optimizer.zero_grad()
        return loss

    def on_update_end(self):
        self.global_step += 1
        self.ema.step()
        self.accelerator.log({"loss": self.running / 2}, step=self.global_step)
        self.running = 0.0
        if self.global_step % 3 == 0:
            self.accelerator.save_state(f"ckpt-{self.global_step}")

    def fit(self):
        for batch in self.loader:
            self.running += self.training_step(batch)
            if self.accelerator.sync_gradients:
                self.on_update_end()
        done(global_step=self.global_step)


Trainer().fit()
