"""What hides from the flag."""

import pytest

COUNT = "if accelerator.sync_gradients:\n    global_step += 1\n"


@pytest.mark.parametrize(
    ("step", "body", "code"),
    [
        ("optimizer.step()\n", COUNT + "    accelerator.wait_for_everyone()", "collectives"),
        ("optimizer = torch.optim.AdamW([], fused=True)\noptimizer.step()\n", COUNT, "fused-optimizer"),
        ("args.opt.step()\n", COUNT, "prepared-elsewhere"),
    ],
)
def test_each_is_reported(make_loop, step, body, code):
    assert code in make_loop(step="accelerator.accumulate(model)\n" + step).codes(body)


def test_fused_optimizers_cite_the_issue(make_loop):
    loop = make_loop(step="optimizer = AdamW(model, fused=True)\noptimizer.step()\n")
    (site,) = [site for site in loop.rewrite(COUNT).sites if site.code == "fused-optimizer"]
    assert "huggingface/accelerate#4242" in site.message


def test_a_script_that_never_steps_gets_no_warning(make_loop):
    loop = make_loop(step="num_train_epochs = math.ceil(args.max_train_steps / n)\n")
    assert loop.stays("x = AdamW(fused=True)") == set()
