from accelerate import Accelerator
from toykit import EMA, Bar, Loader, Model, Optimizer, Scheduler, done


def main():
    accelerator = Accelerator(gradient_accumulation_steps=2)
    model = Model()
    model, optimizer, loader = accelerator.prepare(model, Optimizer(model), Loader(16))
    ema, bar, global_step = EMA(model), Bar(), 0

    def one(batch):
        nonlocal global_step
        with accelerator.accumulate(model):
            accelerator.backward(model(batch))
            optimizer.step()
            optimizer.zero_grad()

        def finish():
            nonlocal global_step
            global_step += 1
            bar.update(1)
            ema.step()

        if accelerator.sync_gradients:
            finish()
            if global_step % 2 == 0:
                accelerator.save_state(f"c{global_step}")

    for batch in loader:
        one(batch)
    done(global_step=global_step)


main()
