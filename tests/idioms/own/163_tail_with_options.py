from accelerate import Accelerator
from toykit import EMA, Bar, Loader, Model, Optimizer, Scheduler, done


def main(use_ema=True, save_every=3):
    accelerator = Accelerator()
    model = Model()
    opt = Optimizer(model)
    sched = Scheduler(opt)
    model, opt = accelerator.prepare(model, opt)
    ema, bar, num_steps, total = EMA(model), Bar(), 0, 0.0
    for batch in Loader(10):
        loss = model(batch)
        total += loss
        accelerator.backward(loss)
        opt.step()
        sched.step()
        opt.zero_grad()
        if use_ema:
            ema.update()
        num_steps += 1
        bar.update(1)
        bar.set_postfix(loss=loss)
        if num_steps % save_every == 0:
            accelerator.log({"loss": total / save_every}, step=num_steps)
            total = 0.0
        if num_steps >= 9:
            break
    done(global_step=num_steps)


main()
