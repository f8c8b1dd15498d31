"""An ordinary Accelerate loop in the shape of the Diffusers examples: it counts sync boundaries, not applied updates.

Nothing is downloaded; six updates take a second on a CPU.
"""

import torch
from accelerate import Accelerator
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from tqdm.auto import tqdm

MAX_TRAIN_STEPS = 6


def main():
    torch.manual_seed(0)
    accelerator = Accelerator(gradient_accumulation_steps=2)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    lr_scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    dataloader = torch.utils.data.DataLoader(torch.randn(64, 8), batch_size=4)
    ema_model = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    model, optimizer, dataloader, lr_scheduler = accelerator.prepare(model, optimizer, dataloader, lr_scheduler)

    global_step = 0
    progress_bar = tqdm(total=MAX_TRAIN_STEPS)
    while global_step < MAX_TRAIN_STEPS:
        train_loss = 0.0
        for batch in dataloader:
            with accelerator.accumulate(model):
                loss = model(batch).square().mean()
                train_loss += loss.detach().item() / accelerator.gradient_accumulation_steps
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                lr_scheduler.step()
                optimizer.zero_grad()

            if accelerator.sync_gradients:
                ema_model.update_parameters(model)
                progress_bar.update(1)
                global_step += 1
                accelerator.log({"train_loss": train_loss}, step=global_step)
                train_loss = 0.0

            if global_step >= MAX_TRAIN_STEPS:
                break


if __name__ == "__main__":
    main()
