from accelerate import Accelerator
from toykit import EMA, Bar, Loader, Model, Optimizer, Scheduler, done


def main():
    accelerator = Accelerator(gradient_accumulation_steps=4)
    model = Model()
    model, optimizer, loader = accelerator.prepare(model, Optimizer(model), Loader(32))
    ema, global_step, losses, tokens = EMA(model), 0, [], 0
    for batch in loader:
        with accelerator.accumulate(model):
            loss = model(batch)
            losses.append(loss)
            tokens += 10
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            global_step += 1
            ema.step()
            if global_step % 2 == 0:
                accelerator.log({"loss": sum(losses) / len(losses), "tokens": tokens / tokens}, step=global_step)
                losses, tokens = [], 0
    done(global_step=global_step)


main()
