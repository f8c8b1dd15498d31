from accelerate import Accelerator
from toykit import Loader, Model, Optimizer, done


class GradScaler:
    def step(self, optimizer):
        optimizer.step()

    def update(self):
        pass


def main():
    accelerator = Accelerator()
    model = Model()
    optimizer = accelerator.prepare(Optimizer(model))
    scaler, global_step = GradScaler(), 0
    for batch in Loader(6):
        with accelerator.accumulate(model):
            accelerator.backward(model(batch))
            scaler.step(optimizer)
            scaler.update()
        if accelerator.sync_gradients:
            global_step += 1
    done(global_step=global_step)


main()
