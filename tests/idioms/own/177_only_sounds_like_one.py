from toykit import Loader, Model, Optimizer, done


class Fabric:
    sync_gradients = True

    def backward(self, loss):
        pass

    def setup(self, model, opt):
        return model, opt


def main():
    accelerator = Fabric()
    model = Model()
    model, optimizer = accelerator.setup(model, Optimizer(model))
    global_step = 0
    for batch in Loader(6):
        accelerator.backward(model(batch))
        optimizer.step()
        optimizer.zero_grad()
        if accelerator.sync_gradients:
            global_step += 1
    done(global_step=global_step, applied=model.version)


main()
