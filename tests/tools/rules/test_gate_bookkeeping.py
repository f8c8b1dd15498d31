"""Blocks under a sync guard behind the step."""

import pytest

from tools.rewrite import rewrite

GATE = "accelerator.sync_gradients and not accelerator.optimizer_step_was_skipped"


@pytest.mark.parametrize(
    "body",
    [
        "if accelerator.sync_gradients:\n    accelerator.clip_grad_norm_(model.parameters(), 1.0)",
        "if accelerator.sync_gradients:\n    pass",
        "if accelerator.sync_gradients:\n    optimizer.zero_grad()",
        f"if {GATE}:\n    global_step += 1",
        f"if {GATE} and accelerator.is_main_process:\n    ema.step()",
        "applied = accelerator.sync_gradients and not optimizer.step_was_skipped\nif applied:\n    global_step += 1",
        "# if accelerator.sync_gradients:\n#     global_step += 1",
    ],
)
def test_what_needs_no_gate_stays(loop, body):
    assert not loop.stays(body) & {"gated"}


def test_the_test_alone_changes(loop):
    assert loop.becomes(
        "if accelerator.sync_gradients:\n    ema.step(model.parameters())\n    global_step += 1",
        f"if {GATE}:\n    ema.step(model.parameters())\n    global_step += 1",
    )


@pytest.mark.parametrize(
    ("test", "wanted"),
    [
        ("accelerator.sync_gradients and main", f"{GATE} and main"),
        ("main and accelerator.sync_gradients", f"main and {GATE}"),
        (
            "(accelerator.sync_gradients) and main",
            "(accelerator.sync_gradients) and not accelerator.optimizer_step_was_skipped and main",
        ),
        ("(accelerator.sync_gradients and main)", f"({GATE} and main)"),
        (
            "accelerator.sync_gradients is True",
            "accelerator.sync_gradients is True and not accelerator.optimizer_step_was_skipped",
        ),
        (
            "accelerator.gradient_state.sync_gradients",
            "accelerator.gradient_state.sync_gradients and not accelerator.optimizer_step_was_skipped",
        ),
        (
            "not (not accelerator.sync_gradients)",
            "not (not accelerator.sync_gradients) and not accelerator.optimizer_step_was_skipped",
        ),
    ],
)
def test_the_clause_goes_behind_the_one_that_asks_for_the_boundary(loop, test, wanted):
    assert loop.becomes(f"if {test}:\n    global_step += 1", f"if {wanted}:\n    global_step += 1")


def test_a_test_over_lines_gets_a_line_and_comments_stay_with_their_clauses(loop):
    assert loop.becomes(
        "if (\n    accelerator.sync_gradients  # boundary\n    and main\n):\n    global_step += 1",
        "if (\n    accelerator.sync_gradients  # boundary\n    and not accelerator.optimizer_step_was_skipped\n"
        "    and main\n):\n    global_step += 1",
    )


def test_a_name_that_the_test_binds_keeps_its_value(loop):
    assert loop.becomes(
        "if (synced := accelerator.sync_gradients):\n    global_step += 1\n    window = 0.0",
        "if (synced := accelerator.sync_gradients) and not accelerator.optimizer_step_was_skipped:\n    global_step += 1\n"
        "    window = 0.0\nelif synced:\n    window = 0.0",
    )


def test_a_block_with_another_arm_gets_a_second_test_inside(loop):
    assert loop.becomes(
        "if accelerator.sync_gradients:\n    global_step += 1\n    window = 0.0\nelse:\n    num_micro += 1",
        "if accelerator.sync_gradients:\n    if not accelerator.optimizer_step_was_skipped:\n        global_step += 1\n"
        "        window = 0.0\n    else:\n        window = 0.0\nelse:\n    num_micro += 1",
    )


def test_text_in_strings_keeps_its_lines_when_a_block_is_indented(loop):
    text = 'if accelerator.sync_gradients:\n    global_step += 1\n    print("""\n  a\n""")\nelse:\n    pass'
    after = loop.rewrite(text).after.decode()
    assert 'print("""\n          a\n        """)' in after  # as deep as the source has it, no deeper


@pytest.mark.parametrize(
    ("prepared", "step", "code"),
    [
        ("loader", "optimizer.step()\n", "unprepared-optimizer"),
        ("optimizer", "scaler = GradScaler()\nscaler.step(optimizer)\n", "own-grad-scaler"),
        ("optimizer", "model_engine.step()\n", "engine-step"),
        ("optimizer, other_optimizer", "optimizer.step()\nother_optimizer.step()\n", "several-optimizers"),
        ("optimizer", "optimizer.step()\noptimizer.step()\n", "several-attempts"),
        ("optimizer", "for part in batch:\n    optimizer.step()\n", "step-in-inner-loop"),
        ("optimizer", "if good(batch):\n    optimizer.step()\n", "conditional-step"),
        ("optimizer", "if step % 2 == 0:\n    optimizer.step()\n", "conditional-step"),
        ("optimizer", "good(batch) and optimizer.step()\n", "conditional-step"),
        ("optimizer", "optimizer.step() if good(batch) else None\n", "conditional-step"),
        ("optimizer", "if bad(batch) or optimizer.step():\n    pass\n", "conditional-step"),
        ("optimizer", "for opt in optimizers:\n    opt.step()\n", "several-optimizers"),
        ("optimizer", "try:\n    optimizer.step()\nexcept RuntimeError:\n    pass\n", "conditional-step"),
        ("optimizer", "", "no-step"),
    ],
)
def test_what_the_flag_cannot_tell_is_refused(make_loop, prepared, step, code):
    loop = make_loop(prepared=prepared, step=step)
    assert code in loop.stays("if accelerator.sync_gradients:\n    global_step += 1\n    ema.step(model)")


def test_a_boundary_or_something_else_is_refused(loop):
    assert "unclear-test" in loop.stays("if accelerator.sync_gradients or step == 9:\n    global_step += 1")


def test_a_simple_condition_of_the_step_is_asked_again(make_loop):
    loop = make_loop(step="finite = batch.ok\nif finite:\n    optimizer.step()\n")
    assert loop.becomes(
        "if accelerator.sync_gradients:\n    global_step += 1", f"if {GATE} and finite:\n    global_step += 1"
    )


def test_steps_that_only_engines_leave_out_count_as_made(make_loop):
    loop = make_loop(step="if accelerator.state.deepspeed_plugin is None:\n    optimizer.step()\n")
    assert loop.becomes("if accelerator.sync_gradients:\n    global_step += 1", f"if {GATE}:\n    global_step += 1")


def test_of_two_optimizers_the_one_that_the_user_names_counts(make_loop):
    loop = make_loop(prepared="optimizer, other_optimizer", step="optimizer.step()\nother_optimizer.step()\n")
    assert loop.becomes(
        "if accelerator.sync_gradients:\n    global_step += 1",
        "if accelerator.sync_gradients and not other_optimizer.step_was_skipped:\n    global_step += 1",
        counted_optimizer="other_optimizer",
    )
    sites = loop.rewrite("if accelerator.sync_gradients:\n    global_step += 1").sites
    assert any("--counted-optimizer optimizer" in site.message for site in sites)


def test_an_optimizer_that_steps_elsewhere_does_not_speak_for_this_one(make_loop):
    loop = make_loop(prepared="optimizer, other_optimizer")
    assert loop.becomes(
        "if accelerator.sync_gradients:\n    global_step += 1",
        "if accelerator.sync_gradients and not optimizer.step_was_skipped:\n    global_step += 1",
    )


@pytest.mark.parametrize(
    "test",
    [
        "all([accelerator.sync_gradients, is_main])",
        "all((is_main, accelerator.sync_gradients))",
        "not any([not accelerator.sync_gradients, is_paused])",
    ],
)
def test_all_of_a_list_is_read_like_and(loop, test):
    gated = f"{test} and not accelerator.optimizer_step_was_skipped"
    assert loop.becomes(f"if {test}:\n    global_step += 1", f"if {gated}:\n    global_step += 1")


def test_any_of_a_list_is_read_like_or(loop):
    assert "unclear-test" in loop.stays("if any([accelerator.sync_gradients, is_last]):\n    global_step += 1")


def test_a_list_that_is_not_written_out_is_not_read(loop):
    assert "unread-test" in loop.stays("if all([accelerator.sync_gradients, *more]):\n    global_step += 1")


RECURSIVE = """\
from accelerate import Accelerator


def update_ema(slow, fast):
    global num_updates
    for (name, slow_child), fast_child in zip(slow.named_children(), fast.children()):
        update_ema(slow_child, fast_child)
    num_updates += 1


accelerator = Accelerator()
model, optimizer = accelerator.prepare(model, optimizer)
for batch in loader:
    accelerator.backward(model(batch))
    optimizer.step()
    if accelerator.sync_gradients:
        update_ema(slow, model)
"""


def test_a_function_that_calls_itself_is_read_once():
    result = rewrite(RECURSIVE.encode())
    wanted = RECURSIVE.replace("if accelerator.sync_gradients:", f"if {GATE}:")
    assert result.after.decode() == wanted


TURNS = """\
with accelerator.accumulate(model):
    if global_step % 2 == 0:
        loss = model(batch)
    else:
        second = other(batch)
        loss = second
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
"""
BY_TURNS = """\
if accelerator.sync_gradients:
    global_step += 1
if (global_step - 1) % 2 == 0:
    logs = {"first": loss}
else:
    logs = {"second": second}
print(logs)
"""


def test_a_counter_that_a_loop_takes_turns_by_cannot_stay_behind(make_loop):
    """Held back at the first update, it would lead to the half that reads what the other turn has not set yet."""
    result = make_loop(step=TURNS).rewrite(BY_TURNS)
    assert result.after == result.before
    (site,) = [site for site in result.sites if site.code == "late-name"]
    assert "`second`" in site.message


def test_turns_whose_names_have_a_value_before_the_loop_are_no_obstacle(make_loop):
    assert "gated" in make_loop(step=TURNS.replace("second", "window")).codes(BY_TURNS.replace(": second", ": window"))


def test_a_step_that_only_the_boundary_decides_about_is_no_chance(make_loop):
    loop = make_loop(step="accelerator.backward(model(batch))\naccelerator.sync_gradients and optimizer.step()\n")
    assert "gated" in loop.codes("if accelerator.sync_gradients:\n    global_step += 1")
