from accelerate import Accelerator
from toykit import EMA, Loader, Model, Optimizer, Scheduler, done


def train(acc, net, opt, sched, data, ema):
    steps = 0
    for batch in data:
        with acc.accumulate(net):
            acc.backward(net(batch))
            if acc.sync_gradients:
                acc.clip_grad_norm_(net.parameters(), 1.0)
            opt.step()
            sched.step()
            opt.zero_grad()
        if acc.sync_gradients:
            ema.step(net.parameters())
            steps += 1
            acc.log({"loss": 1.0}, step=steps)
    return steps


def main():
    accelerator = Accelerator(gradient_accumulation_steps=3)
    model = Model()
    optimizer = Optimizer(model)
    scheduler = Scheduler(optimizer)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, Loader(18), scheduler)
    done(global_step=train(accelerator, model, optimizer, scheduler, loader, EMA(model)))


main()
