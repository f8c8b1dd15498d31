from accelerate import Accelerator
from toykit import EMA, Bar, Loader, Model, Optimizer, Scheduler, done


import asyncio


async def report(accelerator, queue):
    while not queue.empty():
        values, step = await queue.get()
        accelerator.log(values, step=step)


async def main():
    accelerator = Accelerator(gradient_accumulation_steps=2)
    model = Model()
    model, optimizer, loader = accelerator.prepare(model, Optimizer(model), Loader(16))
    queue, global_step = asyncio.Queue(), 0
    for batch in loader:
        with accelerator.accumulate(model):
            accelerator.backward(model(batch))
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            global_step += 1
            await queue.put(({"loss": 1.0}, global_step))
        await report(accelerator, queue)
    done(global_step=global_step)


asyncio.run(main())
