from accelerate import Accelerator
from toykit import EMA, Bar, Loader, Model, Optimizer, Scheduler, done


def main():
    accelerator = Accelerator(gradient_accumulation_steps=2)
    model = Model()
    model, optimizer, loader = accelerator.prepare(model, Optimizer(model), Loader(16))
    ema, total, global_step, best = EMA(model), 0.0, 0, 9.0
    while global_step < 12:
        for batch in loader:
            with accelerator.accumulate(model):
                loss = model(batch)
                total += loss
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            if not accelerator.sync_gradients:
                continue
            global_step += 1
            ema.step()
            mean, total = total / 2, 0.0
            accelerator.log({"loss": mean}, step=global_step)
            if global_step % 5 == 0:
                accelerator.save_state(f"e{global_step}")
            if global_step >= 12:
                break
        else:
            best = min(best, total)
    done(global_step=global_step)


main()
