from accelerate import Accelerator
from toykit import EMA, Loader, Model, Optimizer, done


class Trainer:
    def __init__(self):
        self.accelerator = Accelerator(gradient_accumulation_steps=2)
        self.model = Model()
        self.ema = EMA(self.model)
        self.optimizer = self.accelerator.prepare(Optimizer(self.model))
        self.state = {"step": 0, "loss": 0.0}

    def on_step_end(self):
        if not self.accelerator.sync_gradients:
            return
        self.ema.step(self.model.parameters())
        self.state["step"] += 1
        self.accelerator.log({"loss": self.state["loss"]}, step=self.state["step"])
        self.state["loss"] = 0.0

    def train_step(self, batch):
        with self.accelerator.accumulate(self.model):
            loss = self.model(batch)
            self.state["loss"] += loss / 2
            self.accelerator.backward(loss)
            self.optimizer.step()
            self.optimizer.zero_grad()

    def train(self):
        for batch in Loader(12):
            self.train_step(batch)
            self.on_step_end()
        done(global_step=self.state["step"])


Trainer().train()
