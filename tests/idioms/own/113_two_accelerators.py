from accelerate import Accelerator
from toykit import EMA, Loader, Model, Optimizer, done


def main():
    acc_g, acc_d = Accelerator(gradient_accumulation_steps=2), Accelerator(gradient_accumulation_steps=2)
    gen, disc = Model("g"), Model("d")
    optimizer_g = acc_g.prepare(Optimizer(gen, "main"))
    optimizer_d = acc_d.prepare(Optimizer(disc, "d"))
    ema, global_step, disc_steps = EMA(gen), 0, 0
    for batch in Loader(12):
        with acc_g.accumulate(gen):
            acc_g.backward(gen(batch))
            optimizer_g.step()
            optimizer_g.zero_grad()
        if acc_g.sync_gradients:
            ema.step(gen.parameters())
            global_step += 1
        with acc_d.accumulate(disc):
            acc_d.backward(disc(batch))
            optimizer_d.step()
            optimizer_d.zero_grad()
    done(global_step=global_step, disc_steps=disc_steps)


main()
