from accelerate import Accelerator
from toykit import EMA, Loader, Model, Optimizer, done


def main():
    accelerator = Accelerator()
    gen, disc = Model("main"), Model("d")
    optimizer, disc_optimizer = accelerator.prepare(Optimizer(gen, "main"), Optimizer(disc, "d"))
    updates, log_steps, applied = 0, 4, 0
    for i, batch in enumerate(Loader(24)):
        generator_step = i % 2 == 0
        if generator_step:
            with accelerator.accumulate(gen):
                accelerator.backward(gen(batch))
                optimizer.step()
                optimizer.zero_grad()
        else:
            with accelerator.accumulate(disc):
                accelerator.backward(disc(batch))
                disc_optimizer.step()
                disc_optimizer.zero_grad()
        if accelerator.sync_gradients:
            updates += 1
        if accelerator.sync_gradients and not generator_step and accelerator.is_main_process:
            if updates % log_steps == 0:
                accelerator.log({"loss": 1.0}, step=updates)
                applied += 1
    done(updates=updates, applied=gen.version + disc.version, logs=applied)


main()
