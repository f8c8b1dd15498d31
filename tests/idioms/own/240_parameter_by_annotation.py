from accelerate import Accelerator
from toykit import EMA, Loader, Model, Optimizer, done


class TrainState:
    global_step = 0

    def advance(self):
        self.global_step += 1


def train(accelerator: Accelerator, model, optimizer: "Optimizer", loader, state: "TrainState | None" = None):
    for batch in loader:
        accelerator.backward(model(batch))
        optimizer.step()
        optimizer.zero_grad()
        state.advance()
        if state.global_step % 2 == 0:
            accelerator.save_state(f"checkpoint-{state.global_step}")


def main(**keywords):
    accelerator = Accelerator()
    model = Model()
    model, optimizer, loader = accelerator.prepare(model, Optimizer(model), Loader(16))
    state = TrainState()
    keywords.update(accelerator=accelerator, model=model, optimizer=optimizer, loader=loader, state=state)
    train(**keywords)
    done(global_step=state.global_step)


main()
