from accelerate import Accelerator
from toykit import Loader, Model, Optimizer, done


def main():
    accelerator = Accelerator(gradient_accumulation_steps=2)
    model = Model()
    optimizer = Optimizer(model)
    model, optimizer, loader = accelerator.prepare(model, optimizer, Loader(14))
    global_step, train_loss, running_loss = 0, 0.0, 0.0
    for batch in loader:
        with accelerator.accumulate(model):
            loss = model(batch)
            running_loss += loss / 2
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients and not accelerator.optimizer_step_was_skipped:
            global_step += 1
            accelerator.log({"loss": running_loss}, step=global_step)
            running_loss = 0.0
        elif accelerator.sync_gradients:
            train_loss = 0.0
    done(global_step=global_step, train_loss=train_loss)


main()
