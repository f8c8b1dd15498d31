from accelerate import Accelerator
from toykit import EMA, Bar, Loader, Model, Optimizer, Scheduler, done


def main():
    accelerator = Accelerator(gradient_accumulation_steps=2)
    warm, full = Model("warm"), Model()
    warm_opt, optimizer = Optimizer(warm, "warm"), Optimizer(full)
    warm, full, warm_opt, optimizer, loader = accelerator.prepare(warm, full, warm_opt, optimizer, Loader(20))
    ema, global_step, warm_steps = EMA(full), 0, 0
    for i, batch in enumerate(loader):
        is_warm = i < 4
        model, opt = (warm, warm_opt) if is_warm else (full, optimizer)
        with accelerator.accumulate(model):
            accelerator.backward(model(batch))
            opt.step()
            opt.zero_grad()
        if accelerator.sync_gradients:
            if is_warm:
                warm_steps += 1
            else:
                global_step += 1
                ema.step()
    done(global_step=global_step, warm=warm_steps)


main()
