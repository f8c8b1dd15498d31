from accelerate import Accelerator
from toykit import Loader, Model, Optimizer, Scheduler, done


def main(train_text_encoder=True):
    accelerator = Accelerator(gradient_accumulation_steps=2)
    unet, text_encoder = Model(), Model("text")
    optimizer = Optimizer(unet)
    lr_scheduler = Scheduler(optimizer)
    loader = Loader(12)
    if train_text_encoder:
        unet, text_encoder, optimizer, loader, lr_scheduler = accelerator.prepare(
            unet, text_encoder, optimizer, loader, lr_scheduler
        )
    else:
        unet, optimizer, loader, lr_scheduler = accelerator.prepare(unet, optimizer, loader, lr_scheduler)
    global_step = 0
    for step, batch in enumerate(loader):
        with accelerator.accumulate(unet):
            accelerator.backward(unet(batch))
            if accelerator.sync_gradients:
                params = unet.parameters()
                accelerator.clip_grad_norm_(params, 1.0)
            optimizer.step()
            lr_scheduler.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            global_step += 1

            if accelerator.is_main_process:
                if global_step % 2 == 0:
                    accelerator.save_state(f"checkpoint-{global_step}")
            # the last comment of the block

    done(global_step=global_step)


main()
