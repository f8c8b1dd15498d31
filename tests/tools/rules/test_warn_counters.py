"""What leans on a counter of applied updates."""

import pytest

from tools.rewrite import rewrite

COUNT = "if accelerator.sync_gradients:\n    global_step += 1\n"


@pytest.mark.parametrize(
    ("step", "body", "code"),
    [
        ("num_train_epochs = math.ceil(args.max_train_steps / n)\noptimizer.step()\n", COUNT, "epoch-budget"),
        ("first_epoch = global_step // n\noptimizer.step()\n", COUNT, "resume-arithmetic"),
        (
            "while global_step < 9:\n    optimizer.step()\n    if accelerator.sync_gradients:\n        global_step += 1\n",
            "",
            "while-bound",
        ),
        (
            "for i in range(global_step, 9):\n    optimizer.step()\n    if accelerator.sync_gradients:\n        global_step += 1\n",
            "",
            "range-bound",
        ),
        ("num_tokens += 8\noptimizer.step()\n", COUNT, "data-counter"),
        ("if resumed:\n    progress_bar.update(1)\n    continue\noptimizer.step()\n", COUNT, "fast-forward"),
        ("accelerator.backward(loss)\nnum_steps += 1\noptimizer.step()\n", "", "before-step"),
    ],
)
def test_each_is_reported(make_loop, step, body, code):
    assert code in make_loop(step="accelerator.accumulate(model)\n" + step).codes(body)


def test_a_loop_over_a_generator_that_steps_is_behind_the_step():
    text = """\
from accelerate import Accelerator


def main(loader):
    accelerator = Accelerator()
    model, optimizer = accelerator.prepare(build(), torch.optim.AdamW(parameters))
    global_step = 0

    def updates():
        for batch in loader:
            accelerator.backward(model(batch))
            optimizer.step()
            if accelerator.sync_gradients:
                yield batch

    for batch in updates():
        global_step += 1
"""
    assert "before-step" not in {site.code for site in rewrite(text.encode()).sites}


@pytest.mark.parametrize(
    "line",
    [
        "shown = global_step // n\n    progress_bar.set_postfix(epoch=shown)",
        'text = f"{global_step // 100} hundreds"\n    print(text)',
        'logs = {"epoch": global_step // n}\n    accelerator.log(logs, step=global_step)',
        "print(global_step // n)",
    ],
)
def test_arithmetic_that_is_only_shown_is_no_place_in_the_data(loop, line):
    assert "resume-arithmetic" not in loop.codes(COUNT + "    " + line)


@pytest.mark.parametrize(
    "line",
    [
        "epoch = global_step // n\n    sampler.set_epoch(epoch)",
        "self.epoch = global_step // n",
        'state = {"epoch": global_step // n}\n    sampler.load_state_dict(state)',
    ],
)
def test_a_place_in_the_data_is_told_from_what_is_only_shown(loop, line):
    assert "resume-arithmetic" in loop.codes(COUNT + "    " + line)


BOUND = "while global_step < 9:\n    optimizer.step()\n    if accelerator.sync_gradients{more}:\n        {body}\n"


@pytest.mark.parametrize(
    ("more", "body"),
    [
        ("", "ema.step()\n        global_step = finish_step(global_step)"),
        ("", 'state["global_step"] += 1\n        global_step = state["global_step"]'),
        (" and (global_step := global_step + 1) % 2 == 0", "accelerator.log({}, step=global_step)"),
    ],
)
def test_a_bound_is_reported_however_its_counter_is_set(make_loop, more, body):
    step = "accelerator.accumulate(model)\n" + BOUND.format(more=more, body=body)
    assert {"gated", "while-bound"} <= make_loop(step=step).codes("")


def test_a_bound_that_moves_at_skipped_updates_too_is_not_reported(make_loop):
    body = "ema.step()\n        global_step = finish_step(global_step)\n    global_step = at_least(global_step)"
    step = "accelerator.accumulate(model)\n" + BOUND.format(more="", body=body)
    assert "while-bound" not in make_loop(step=step).codes("")
