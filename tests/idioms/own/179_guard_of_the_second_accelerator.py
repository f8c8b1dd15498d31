from accelerate import Accelerator
from toykit import EMA, Loader, Model, Optimizer, done


def main():
    acc_a, acc_b = Accelerator(), Accelerator()
    g, d = Model("g"), Model("d")
    opt_g = acc_a.prepare(Optimizer(g, "g"))
    opt_d = acc_b.prepare(Optimizer(d, "d"))
    ema, global_step, d_step = EMA(g), 0, 0
    for batch in Loader(12):
        with acc_b.accumulate(d):
            acc_b.backward(d(batch))
            opt_d.step()
        if acc_b.sync_gradients:
            d_step += 1
        with acc_a.accumulate(g):
            acc_a.backward(g(batch))
            opt_g.step()
        if acc_a.sync_gradients:
            ema.step()
            global_step += 1
            acc_a.log({"loss": 1.0}, step=global_step)
    done(global_step=global_step, d_step=d_step)


main()
