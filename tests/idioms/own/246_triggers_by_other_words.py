from accelerate import Accelerator
from toykit import EMA, Bar, Loader, Model, Optimizer, Scheduler, done


def falls_on(number, distance):
    return number % distance == 0


class Course:
    def __init__(self):
        self.accelerator = Accelerator()
        model = Model()
        optimizer = Optimizer(model)
        scheduler = Scheduler(optimizer)
        prepared = self.accelerator.prepare(model, optimizer, Loader(12), scheduler)
        self.model, self.optimizer, self.loader, self.scheduler = prepared
        self.ema = EMA(self.model)
        self.progress_bar = Bar()
        self.rounds = 0

    def run(self):
        for batch in self.loader:
            loss = self.model(batch)
            self.accelerator.backward(loss)
            self.optimizer.step()
            self.scheduler.step()
            self.optimizer.zero_grad()
            self.ema.step(self.model)
            self.rounds += 1
            self.progress_bar.update(1)
            print(loss)
            must_save = falls_on(self.rounds, 5) and self.accelerator.is_main_process
            if must_save:
                self.accelerator.save_state(f"checkpoint-{self.rounds}")
            if falls_on(self.rounds, 4):
                self.accelerator.log({"loss": loss}, step=self.rounds)
            self.tell(loss)

    def tell(self, loss):
        if self.rounds % 7 == 0:
            self.accelerator.log({"seventh": loss}, step=self.rounds)


course = Course()
course.run()
done(global_step=course.rounds)
