"""Optimizers that take turns."""

from tools.rewrite import rewrite

TURNS = """\
if generator_step:
    with accelerator.accumulate(model):
        optimizer.step()
        optimizer.zero_grad()
else:
    with accelerator.accumulate(other):
        other_optimizer.step()
        other_optimizer.zero_grad()
"""
BOTH = {"prepared": "optimizer, other_optimizer", "step": TURNS}


def test_the_flag_of_the_one_that_stepped_is_kept(make_loop):
    after = make_loop(**BOTH).rewrite("if accelerator.sync_gradients:\n    global_step += 1").after.decode()
    assert "optimizer.step()\n                step_was_skipped = optimizer.step_was_skipped\n" in after
    assert "other_optimizer.step()\n                step_was_skipped = other_optimizer.step_was_skipped\n" in after
    assert "        if accelerator.sync_gradients and not step_was_skipped:\n" in after


def test_a_test_that_says_whose_turn_it_was_asks_that_one(make_loop):
    body = "if accelerator.sync_gradients and not generator_step:\n    global_step += 1"
    after = make_loop(**BOTH).rewrite(body).after.decode()
    assert "accelerator.sync_gradients and not other_optimizer.step_was_skipped and not generator_step" in after
    assert " step_was_skipped = " not in after


def test_a_turn_that_has_changed_since_says_nothing(make_loop):
    body = (
        "generator_step = not generator_step\nif accelerator.sync_gradients and generator_step:\n    global_step += 1"
    )
    after = make_loop(**BOTH).rewrite(body).after.decode()
    assert "accelerator.sync_gradients and not step_was_skipped and generator_step" in after


def test_a_name_that_is_taken_is_not_used_again(make_loop):
    body = "step_was_skipped = 3\nif accelerator.sync_gradients:\n    global_step += 1"
    after = make_loop(**BOTH).rewrite(body).after.decode()
    assert "not update_was_skipped" in after


def test_a_step_that_shares_its_line_keeps_it(make_loop):
    loop = make_loop(
        prepared=BOTH["prepared"], step=TURNS.replace("optimizer.step()\n        other", "optimizer.step(); other")
    )
    after = loop.rewrite("if accelerator.sync_gradients:\n    global_step += 1").after.decode()
    assert (
        "other_optimizer.step(); step_was_skipped = other_optimizer.step_was_skipped; other_optimizer.zero_grad()"
        in after
    )


def test_arms_that_cover_every_value_of_a_phase_leave_no_gap(make_loop):
    turns = TURNS.replace("if generator_step:", 'if phase == "G":').replace("else:", 'elif phase == "D":')
    step = "phase = 'G'\n" + turns
    loop = make_loop(prepared=BOTH["prepared"], step=step.replace("optimizer.zero_grad()", 'phase = "D"', 1))
    assert "own-flag" in loop.codes("if accelerator.sync_gradients:\n    global_step += 1")
    gap = make_loop(prepared=BOTH["prepared"], step=step.replace("optimizer.zero_grad()", "phase = name()", 1))
    assert "conditional-step" in gap.stays("if accelerator.sync_gradients:\n    global_step += 1")


CHOICE = """\
from accelerate import Accelerator

accelerator = Accelerator()
first, second = torch.optim.SGD(a), torch.optim.SGD(b)
first, SECOND = accelerator.prepare(first, second)
for i, batch in enumerate(loader):
    model, opt = (a, first) if i < 4 else (b, second)
    accelerator.backward(model(batch))
    opt.step()
    opt.zero_grad()
    global_step += 1
"""


def test_a_name_for_one_of_several_prepared_optimizers_is_asked_itself():
    after = rewrite(CHOICE.replace("SECOND", "second").encode()).after.decode()
    assert "    if not opt.step_was_skipped:\n        global_step += 1\n" in after


def test_a_choice_between_a_prepared_and_another_optimizer_is_refused():
    result = rewrite(CHOICE.replace("SECOND", "other").encode())
    assert result.after == result.before
    assert "unprepared-optimizer" in {site.code for site in result.sites}
