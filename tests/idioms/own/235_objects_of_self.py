from accelerate import Accelerator
from toykit import EMA, Loader, Model, Optimizer, done


class Progress:
    def __init__(self):
        self.step, self.losses, self.saved = 0, [], []

    def record(self, loss):
        self.losses.append(loss)

    def advance(self):
        self.step += 1


class Engine:
    def __init__(self, accelerator, model, optimizer):
        self.accelerator, self.model, self.optimizer = accelerator, model, optimizer

    def update(self, batch):
        with self.accelerator.accumulate(self.model):
            loss = self.model(batch)
            self.accelerator.backward(loss)
            self.optimizer.step()
            self.optimizer.zero_grad()
        return loss


class Trainer:
    def __init__(self):
        self.accelerator = Accelerator(gradient_accumulation_steps=2)
        model = Model()
        model, optimizer, self.loader = self.accelerator.prepare(model, Optimizer(model), Loader(32))
        self.engine, self.ema = Engine(self.accelerator, model, optimizer), EMA(model)
        self.progress = None

    def fit(self):
        self.progress = Progress()
        for batch in self.loader:
            loss = self.engine.update(batch)
            self.progress.record(loss)
            if self.accelerator.sync_gradients:
                self.ema.step()
                self.progress.advance()
                self.accelerator.log({"loss": sum(self.progress.losses) / 2}, step=self.progress.step)
                self.progress.losses = []
            if self.progress.step % 4 == 0 and self.accelerator.sync_gradients:
                self.accelerator.save_state(f"checkpoint-{self.progress.step}")
        done(global_step=self.progress.step)


Trainer().fit()
