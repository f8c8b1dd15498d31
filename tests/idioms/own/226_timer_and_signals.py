from accelerate import Accelerator
from toykit import EMA, Bar, Loader, Model, Optimizer, Scheduler, done


import signal
import time


class Timer:
    def __init__(self):
        self.count, self.start = 0, time.time()

    def tick(self):
        self.count += 1
        return self.count / max(time.time() - self.start, 1e-9)


def main():
    stop = {"flag": False}
    signal.signal(signal.SIGTERM, lambda *_: stop.update(flag=True))
    accelerator = Accelerator(gradient_accumulation_steps=2)
    model = Model()
    model, optimizer, loader = accelerator.prepare(model, Optimizer(model), Loader(16))
    timer, ema, bar, global_step = Timer(), EMA(model), Bar(total=8), 0
    for batch in loader:
        with accelerator.accumulate(model):
            accelerator.backward(model(batch))
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            speed = timer.tick()
            bar.update(1)
            bar.set_postfix(speed=speed)
            global_step += 1
            ema.step()
            if stop["flag"]:
                accelerator.save_state("interrupted")
                break
        accelerator.log({"speed": 1.0}, step=global_step) if accelerator.sync_gradients else None
    done(global_step=global_step)


main()
