from accelerate import Accelerator
from toykit import Loader, Model, Optimizer, Scheduler, done


def main():
    accelerator = Accelerator(gradient_accumulation_steps=2)
    model = Model()
    optimizer = Optimizer(model)
    lr_scheduler = Scheduler(optimizer)
    model, optimizer, loader, lr_scheduler = accelerator.prepare(model, optimizer, Loader(16), lr_scheduler)
    state = {"loss": 0.0, "step": 0}
    def boundary():
        state["step"] += 1
        accelerator.log({"loss": state["loss"]}, step=state["step"])
        state["loss"] = 0.0

    for step, batch in enumerate(loader):
        with accelerator.accumulate(model):
            loss = model(batch)
            state["loss"] += loss / 2
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            boundary()
    done(global_step=state["step"])


main()
