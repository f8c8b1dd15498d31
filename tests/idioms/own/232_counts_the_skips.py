from accelerate import Accelerator
from toykit import EMA, Loader, Model, Optimizer, done


def main():
    accelerator = Accelerator(gradient_accumulation_steps=2)
    model = Model()
    optimizer = Optimizer(model)
    model, optimizer, loader = accelerator.prepare(model, optimizer, Loader(14))
    ema, global_step, overflows, in_a_row, loss_sum = EMA(model), 0, 0, 0, 0.0
    for batch in loader:
        with accelerator.accumulate(model):
            loss = model(batch)
            loss_sum += loss / 2
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients and not accelerator.optimizer_step_was_skipped:
            global_step += 1
            in_a_row = 0
            accelerator.log({"loss": loss_sum}, step=global_step)
            loss_sum = 0.0
        elif accelerator.sync_gradients:
            overflows += 1
            in_a_row += 1
            loss_sum = 0.0
            if in_a_row == 50:
                raise SystemExit("fifty overflows in a row")
        if accelerator.sync_gradients:
            ema.step(model.parameters())
    done(global_step=global_step, overflows=overflows)


main()
