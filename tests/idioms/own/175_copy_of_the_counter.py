from accelerate import Accelerator
from toykit import Loader, Model, Optimizer, done


class T:
    def __init__(self):
        self.accelerator = Accelerator()
        self.model = Model()
        self.opt = self.accelerator.prepare(Optimizer(self.model))
        self.steps = 0

    def train_step(self, batch):
        steps = int(self.steps)
        self.accelerator.backward(self.model(batch))
        self.opt.step()
        self.opt.zero_grad()
        self.accelerator.log({"loss": 1.0}, step=steps)
        if not (steps % 2):
            self.accelerator.save_state(f"model.{steps}.pt")
        self.steps += 1

    def fit(self):
        for batch in Loader(9):
            self.train_step(batch)
        done(global_step=self.steps)


T().fit()
