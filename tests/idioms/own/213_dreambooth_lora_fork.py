from accelerate import Accelerator
from toykit import EMA, Bar, Loader, Model, Optimizer, Scheduler, done


import argparse


def main(args):
    accelerator = Accelerator(gradient_accumulation_steps=args.gradient_accumulation_steps)
    unet, text_encoder = Model("unet"), Model("text")
    params_to_optimize = [unet.parameters(), text_encoder.parameters()] if args.train_text_encoder else unet.parameters()
    optimizer = Optimizer(unet)
    lr_scheduler = Scheduler(optimizer)
    if args.train_text_encoder:
        unet, text_encoder, optimizer, loader, lr_scheduler = accelerator.prepare(
            unet, text_encoder, optimizer, Loader(16), lr_scheduler
        )
    else:
        unet, optimizer, loader, lr_scheduler = accelerator.prepare(unet, optimizer, Loader(16), lr_scheduler)
    progress_bar = Bar(range(args.max_train_steps), disable=not accelerator.is_local_main_process)
    global_step = 0
    loss_total, best = 0.0, None
    for epoch in range(2):
        unet.train()
        for step, batch in enumerate(loader):
            with accelerator.accumulate(unet):
                loss = unet(batch)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(params_to_optimize, args.max_grad_norm)
                optimizer.step()
                lr_scheduler.step()
                optimizer.zero_grad(set_to_none=args.set_grads_to_none)
                progress_bar.update(1) if accelerator.sync_gradients else None
                global_step += 1 if accelerator.sync_gradients else 0
            loss_total += loss
            if global_step > 0 and accelerator.sync_gradients and global_step % args.save_steps == 0:
                if accelerator.is_main_process:
                    accelerator.save_state(f"lora_{global_step}")
            logs = {"loss": loss, "lr": lr_scheduler.get_last_lr()[0]}
            progress_bar.set_postfix(**logs)
            if accelerator.sync_gradients:
                accelerator.log(logs, step=global_step)
            if global_step >= args.max_train_steps:
                break
    done(global_step=global_step)


main(argparse.Namespace(gradient_accumulation_steps=2, train_text_encoder=False, max_train_steps=12, max_grad_norm=1.0,
                        set_grads_to_none=True, save_steps=4))
