from dataclasses import dataclass

from accelerate import Accelerator
from toykit import EMA, Bar, Loader, Model, Optimizer, Scheduler, done


@dataclass
class State:
    step: int = 0
    epoch: int = 0

    def advance(self):
        self.step += 1


def main():
    accelerator = Accelerator(gradient_accumulation_steps=2)
    model = Model()
    model, optimizer, loader = accelerator.prepare(model, Optimizer(model), Loader(16))
    state, ema = State(), EMA(model)
    for state.epoch in range(2):
        for batch in loader:
            with accelerator.accumulate(model):
                loss = model(batch)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                ema.step()
                accelerator.log({"loss": loss}, step=state.step + 1)
                state.advance()
    done(global_step=state.step)


main()
