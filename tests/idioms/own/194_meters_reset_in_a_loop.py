from accelerate import Accelerator
from toykit import Loader, Model, Optimizer, Scheduler, done


class AverageMeter:
    def __init__(self):
        self.reset()

    def reset(self):
        self.sum = self.count = 0

    def update(self, v, n=1):
        self.sum += v
        self.count += n

    @property
    def avg(self):
        return self.sum / max(self.count, 1)


def main():
    accelerator = Accelerator(gradient_accumulation_steps=2)
    model = Model()
    optimizer = Optimizer(model)
    lr_scheduler = Scheduler(optimizer)
    model, optimizer, loader, lr_scheduler = accelerator.prepare(model, optimizer, Loader(16), lr_scheduler)
    global_step, meters = 0, {"a": AverageMeter(), "b": AverageMeter()}
    for i, batch in enumerate(loader):
        with accelerator.accumulate(model):
            loss = model(batch)
            meters["a"].update(loss)
            meters["b"].update(loss)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            global_step += 1
            accelerator.log({k: m.count for k, m in meters.items()}, step=global_step)
            for m in meters.values():
                m.reset()
    done(global_step=global_step)


main()
