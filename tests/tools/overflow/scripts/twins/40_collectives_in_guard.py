"""The twin of the idiom of this name: the real `reduce` takes tensors only."""

import torch
from accelerate import Accelerator
from toykit import Loader, Model, Optimizer, Scheduler, done


def main():
    accelerator = Accelerator(gradient_accumulation_steps=2)
    model = Model()
    optimizer = Optimizer(model)
    lr_scheduler = Scheduler(optimizer)
    model, optimizer, loader, lr_scheduler = accelerator.prepare(model, optimizer, Loader(12), lr_scheduler)
    completed_steps, total_loss, tokens = 0, 0.0, torch.zeros(())
    for batch in loader:
        tokens += 1
        with accelerator.accumulate(model):
            loss = model(batch)
            total_loss += loss.detach()
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            lr_scheduler.step()
        if accelerator.sync_gradients:
            completed_steps += 1
            mean = accelerator.gather(total_loss) / 2
            accelerator.log({"loss": mean, "tokens": accelerator.reduce(tokens.clone())}, step=completed_steps)
            total_loss = 0.0
            accelerator.wait_for_everyone()
    done(global_step=completed_steps, tokens=tokens)


main()
