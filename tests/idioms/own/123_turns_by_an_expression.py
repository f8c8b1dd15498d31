from accelerate import Accelerator
from toykit import Loader, Model, Optimizer, done


def main():
    accelerator = Accelerator(gradient_accumulation_steps=2)
    gen, disc = Model("main"), Model("d")
    optimizer, disc_optimizer = accelerator.prepare(Optimizer(gen, "main"), Optimizer(disc, "d"))
    updates = 0
    for step, batch in enumerate(Loader(24)):
        if (step // 2) % 2 == 0 or updates < 2:
            with accelerator.accumulate(gen):
                accelerator.backward(gen(batch))
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(gen.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
        else:
            with accelerator.accumulate(disc):
                accelerator.backward(disc(batch))
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(disc.parameters(), 1.0)
                disc_optimizer.step()
                disc_optimizer.zero_grad()
        if accelerator.sync_gradients:
            updates += 1
            accelerator.log({"loss": 1.0}, step=updates)
    done(updates=updates, applied=gen.version + disc.version)


main()
