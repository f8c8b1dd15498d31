from accelerate import Accelerator
from toykit import EMA, Bar, Loader, Model, Optimizer, Scheduler, done


def cycle(loader):
    while True:
        yield from loader


class Trainer:
    def __init__(self):
        self.accelerator = Accelerator()
        self.model = Model()
        self.opt = Optimizer(self.model)
        self.ema = EMA(self.model)
        self.model, self.opt = self.accelerator.prepare(self.model, self.opt)
        self.dl = cycle(Loader(4))
        self.step = 0
        self.train_num_steps, self.gradient_accumulate_every, self.save_every = 8, 2, 4

    def train(self):
        accelerator = self.accelerator
        while self.step < self.train_num_steps:
            total_loss = 0.0
            for _ in range(self.gradient_accumulate_every):
                data = next(self.dl)
                loss = self.model(data) / self.gradient_accumulate_every
                total_loss += loss
                accelerator.backward(loss)
            accelerator.clip_grad_norm_(self.model.parameters(), 1.0)
            self.opt.step()
            self.opt.zero_grad()
            self.step += 1
            if accelerator.is_main_process:
                self.ema.update()
                if self.step != 0 and self.step % self.save_every == 0:
                    accelerator.save_state(f"model-{self.step // self.save_every}")
            accelerator.log({"loss": total_loss}, step=self.step)
        done(global_step=self.step)


Trainer().train()
