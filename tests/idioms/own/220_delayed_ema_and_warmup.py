from accelerate import Accelerator
from toykit import EMA, Bar, Loader, Model, Optimizer, Scheduler, done


def main():
    accelerator = Accelerator(gradient_accumulation_steps=2)
    model = Model()
    model, optimizer, loader = accelerator.prepare(model, Optimizer(model), Loader(24))
    ema, global_step, lr_steps = EMA(model), 0, 0
    for epoch in range(1):
        for batch in loader:
            with accelerator.accumulate(model):
                accelerator.backward(model(batch))
                if global_step < 4:
                    for group in optimizer.param_groups:
                        group["lr"] = 0.1 * (global_step + 1) / 4
                optimizer.step()
                optimizer.zero_grad()
                if accelerator.sync_gradients:
                    global_step += 1
                    if global_step > 3 and global_step % 2 == 0:
                        ema.step()
            if accelerator.is_main_process and accelerator.sync_gradients and global_step % 4 == 0:
                accelerator.save_state(f"w{global_step}")
    done(global_step=global_step)


main()
