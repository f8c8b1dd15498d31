from accelerate import Accelerator
from toykit import Loader, Model, done


class Engine:
    def __init__(self, model):
        self.model = model

    def backward(self, loss):
        pass

    def step(self):
        self.model.version += 1


class deepspeed:
    @staticmethod
    def initialize(model):
        return Engine(model), None


def main():
    accelerator = Accelerator()
    model = Model()
    trained, _ = deepspeed.initialize(model=model)
    global_step = 0
    for batch in Loader(6):
        with accelerator.accumulate(model):
            trained.backward(1.0)
            trained.step()
        if accelerator.sync_gradients:
            global_step += 1
    done(global_step=global_step, applied=model.version)


main()
