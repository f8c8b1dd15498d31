from accelerate import Accelerator
from toykit import Loader, Model, Optimizer, Scheduler, done


def main():
    from types import SimpleNamespace
    args = SimpleNamespace(fused=True)
    accelerator = Accelerator(gradient_accumulation_steps=2)
    model = Model()
    optimizer = Optimizer(model)
    lr_scheduler = Scheduler(optimizer)
    model, optimizer, loader, lr_scheduler = accelerator.prepare(model, optimizer, Loader(16), lr_scheduler)
    global_step = 0
    for step, batch in enumerate(loader):
        with accelerator.accumulate(model):
            accelerator.backward(model(batch))
            if not args.fused:
                optimizer.step()
                optimizer.zero_grad()
            else:
                model.version += accelerator.sync_gradients
        if accelerator.sync_gradients:
            global_step += 1
            accelerator.log({"loss": 1.0}, step=global_step)
    done(global_step=global_step)


main()
