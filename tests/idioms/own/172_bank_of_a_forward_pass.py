from accelerate import Accelerator
from toykit import Loader, Model, Optimizer, Scheduler, done


def main():
    class Bank(list):
        most = 0

        def write(self, x):
            self.append(x)
            self.most = max(self.most, len(self))

    accelerator = Accelerator(gradient_accumulation_steps=2)
    model = Model()
    optimizer = Optimizer(model)
    lr_scheduler = Scheduler(optimizer)
    model, optimizer, loader, lr_scheduler = accelerator.prepare(model, optimizer, Loader(16), lr_scheduler)
    global_step = 0
    bank = Bank()
    for step, batch in enumerate(loader):
        with accelerator.accumulate(model):
            bank.write(batch)
            accelerator.backward(model(batch))
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            bank.clear()
            global_step += 1
            accelerator.log({"loss": 1.0}, step=global_step)
    done(global_step=global_step, most=bank.most)


main()
