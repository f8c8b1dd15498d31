from accelerate import Accelerator
from toykit import EMA, Loader, Model, Optimizer, done


def main():
    accelerator = Accelerator()
    model, disc = Model(), Model("disc")
    optimizer, disc_optimizer = accelerator.prepare(Optimizer(model), Optimizer(disc, "disc"))
    ema, global_step = EMA(model), 0
    for i, batch in enumerate(Loader(8)):
        with accelerator.accumulate(model):
            accelerator.backward(model(batch))
            optimizer.step()
            optimizer.zero_grad()
            if i % 2 == 0:
                accelerator.backward(disc(batch))
                disc_optimizer.step()
                disc_optimizer.zero_grad()
        if accelerator.sync_gradients:
            ema.update()
            global_step += 1
    done(global_step=global_step)


main()
