from accelerate import Accelerator
from toykit import EMA, Loader, Model, Optimizer, Scheduler, done


class Trainer:
    def __init__(self, accelerator, model, optimizer, scheduler, ema):
        self.accelerator = accelerator
        self.model, self.optimizer, self.scheduler, self.ema = model, optimizer, scheduler, ema
        self.updates = 0

    def fit(self, loader):
        accelerator, model = self.accelerator, self.model
        for batch in loader:
            with accelerator.accumulate(model):
                accelerator.backward(model(batch))
                self.optimizer.step()
                self.scheduler.step()
                self.optimizer.zero_grad()
            if accelerator.sync_gradients:
                self.updates += 1
                self.ema.update()
                if self.updates % 2 == 0:
                    accelerator.save_state(f"checkpoint-{self.updates}")


def main():
    accelerator = Accelerator(gradient_accumulation_steps=2)
    model = Model()
    optimizer = Optimizer(model)
    scheduler = Scheduler(optimizer)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, Loader(12), scheduler)
    trainer = Trainer(accelerator, model, optimizer, scheduler, EMA(model))
    trainer.fit(loader)
    done(global_step=trainer.updates)


main()
