from accelerate import Accelerator
from toykit import Loader, Model, Optimizer, done


def main():
    accelerator = Accelerator(mixed_precision="fp16")
    model = Model()
    model, optimizer, loader = accelerator.prepare(model, Optimizer(model), Loader(9))
    global_step, begin = 0, 0
    for step, batch in enumerate(loader):
        load_time = step - begin
        with accelerator.accumulate(model):
            loss = model(batch)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()

            if accelerator.is_main_process:
                print(f"step {step} loss {loss} load {load_time}")

        global_step += 1

        if global_step % 3 == 0:
            path = f"""checkpoint-
{global_step}"""
            accelerator.save_state(path)

        begin = step
    done(global_step=global_step)


main()
