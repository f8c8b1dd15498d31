from accelerate import Accelerator
from toykit import EMA, Bar, Loader, Model, Optimizer, Scheduler, done


class Callback:
    def on_update(self, trainer):
        pass


class EmaCallback(Callback):
    def __init__(self, model):
        self.ema = EMA(model)

    def on_update(self, trainer):
        self.ema.step()


class LogCallback(Callback):
    def on_update(self, trainer):
        trainer.accelerator.log({"loss": 1.0}, step=trainer.global_step)


class Trainer:
    def __init__(self):
        self.accelerator = Accelerator(gradient_accumulation_steps=2)
        self.model = Model()
        self.optimizer = self.accelerator.prepare(Optimizer(self.model))
        self.callbacks = [EmaCallback(self.model), LogCallback()]
        self.global_step = 0

    def fit(self):
        for batch in Loader(16):
            with self.accelerator.accumulate(self.model):
                self.accelerator.backward(self.model(batch))
                self.optimizer.step()
                self.optimizer.zero_grad()
            if self.accelerator.sync_gradients:
                self.global_step += 1
                for callback in self.callbacks:
                    callback.on_update(self)
        done(global_step=self.global_step)


Trainer().fit()
