from accelerate import Accelerator
from toykit import EMA, Bar, Loader, Model, Optimizer, Scheduler, done


from dataclasses import dataclass, field


@dataclass
class State:
    step: int = 0
    epoch: int = 0
    losses: list = field(default_factory=list)

    def advance(self):
        self.step += 1
        self.losses = []


def main():
    accelerator = Accelerator(gradient_accumulation_steps=2)
    model = Model()
    model, optimizer, loader = accelerator.prepare(model, Optimizer(model), Loader(16))
    state, ema = State(), EMA(model)
    for state.epoch in range(2):
        for batch in loader:
            with accelerator.accumulate(model):
                loss = model(batch)
                state.losses.append(loss)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                ema.step()
                accelerator.log({"loss": sum(state.losses) / 2}, step=state.step + 1)
                state.advance()
    done(global_step=state.step)


main()
