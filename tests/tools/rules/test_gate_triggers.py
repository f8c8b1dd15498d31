"""Tests on single values of a counter that stands still."""

import textwrap
from types import SimpleNamespace

import pytest

from tools.rewrite import rewrite
from tools.site import Outcome

GATE = "accelerator.sync_gradients and not accelerator.optimizer_step_was_skipped"
COUNT = "if accelerator.sync_gradients:\n    global_step += 1\n"
COUNTED = f"if {GATE}:\n    global_step += 1\n"


@pytest.mark.parametrize(
    "body", ["if global_step >= 9:\n    break", "if step % 9 == 0:\n    save()", "if global_step < 9:\n    warm_up()"]
)
def test_stop_tests_and_other_numbers_stay(loop, body):
    assert loop.becomes(COUNT + body, COUNTED + body)


@pytest.mark.parametrize(
    "test",
    [
        "global_step % 9 == 0",
        "not global_step % 9",
        "global_step == 9",
        "global_step in (3, 9)",
        "(global_step + 1) % 9 == 0",
    ],
)
def test_single_values_are_asked_after_an_applied_update_only(loop, test):
    assert loop.becomes(f"{COUNT}if {test}:\n    save()", f"{COUNTED}if {GATE} and {test}:\n    save()")


def test_a_long_test_is_written_a_clause_a_line(loop):
    assert loop.becomes(
        f"{COUNT}if args.validation_prompt is not None and global_step % args.validation_steps == 0:\n    save()",
        f"{COUNTED}if (\n    accelerator.sync_gradients\n    and not accelerator.optimizer_step_was_skipped\n"
        "    and args.validation_prompt is not None\n    and global_step % args.validation_steps == 0\n):\n    save()",
    )


def test_a_test_joined_by_or_goes_into_parentheses(loop):
    assert loop.becomes(
        f"{COUNT}if global_step == 9 or end:\n    save()",
        f"{COUNTED}if {GATE} and (global_step == 9 or end):\n    save()",
    )


def test_an_outer_test_keeps_its_text(loop):
    assert loop.becomes(
        f"{COUNT}if main:\n    images = []\n    if global_step % 9 == 0:\n        save()",
        f"{COUNTED}if main:\n    images = []\n    if {GATE} and global_step % 9 == 0:\n        save()",
    )


def test_an_early_continue_on_other_values_is_joined_by_one_on_a_skip(loop):
    assert loop.becomes(
        f"{COUNT}if global_step % 9 != 0 or global_step == 0:\n    continue\nsave()",
        f"{COUNTED}if not accelerator.sync_gradients or accelerator.optimizer_step_was_skipped:\n    continue\n"
        "if global_step % 9 != 0 or global_step == 0:\n    continue\nsave()",
    )


@pytest.mark.parametrize(
    "test",
    [
        "global_step != 9",
        "9 != global_step",
        "0 != global_step % 9",
        "global_step not in (3, 9)",
        "global_step % 9 not in (0, 1)",
        "global_step % 9 > 0",
        "(global_step == 9) != True",
        "not global_step == 9",
        "done or global_step != 9",
    ],
)
def test_an_exit_at_all_but_single_values_is_joined_by_one_on_a_skip(loop, test):
    skipped = "if not accelerator.sync_gradients or accelerator.optimizer_step_was_skipped:\n    continue\n"
    body = f"if {test}:\n    continue\nsave()"
    assert loop.becomes(COUNT + body, COUNTED + skipped + body)


@pytest.mark.parametrize(
    "test",
    [
        "not done or global_step == 9",
        "done % 2 or global_step == 9",
        "done % 2 != 0 or global_step == 9",
        "done != 0 or global_step == 9",
        "done not in seen[global_step]",
        "-(global_step == 9)",
        "not global_step % 9",
        "not (global_step % 9 != 0)",
        "global_step > 9",
        "global_step % 9 < 5",
    ],
)
def test_an_exit_at_single_values_or_for_another_reason_stays(loop, test):
    body = f"if {test}:\n    continue\nsave()"
    assert loop.becomes(COUNT + body, COUNTED + body)


def test_above_the_step_and_with_another_arm_it_is_refused(make_loop):
    loop = make_loop(step="if global_step % 9 == 0:\n    save()\noptimizer.step()\n")
    assert "trigger-before-step" in loop.codes(COUNT)
    assert "else-arm" in make_loop().codes(f"{COUNT}if global_step % 9 == 0:\n    save()\nelse:\n    pass")


def test_a_log_under_the_counter_is_gated_only_where_every_batch_is_a_boundary(make_loop):
    body = "accelerator.log({}, step=global_step)\nx = 1\nprint(x)"
    assert "held-log" in make_loop().codes(COUNT + body)
    assert make_loop(accumulation="").becomes(
        COUNT + body, f"{COUNTED}if {GATE}:\n    accelerator.log({{}}, step=global_step)\nx = 1\nprint(x)"
    )


def test_a_trigger_behind_a_finished_patch_is_gated_too(loop):
    assert loop.becomes(
        f"{COUNTED}if global_step % 9 == 0:\n    save()", f"{COUNTED}if {GATE} and global_step % 9 == 0:\n    save()"
    )


def test_a_log_that_asks_a_flag_itself_is_not_said_to_run_at_every_batch(loop):
    body = "if accelerator.sync_gradients:\n    global_step += 1\n"
    codes = loop.codes(body + "accelerator.log({}, step=global_step) if accelerator.sync_gradients else None")
    assert "held-log" not in codes
    assert "expression-gated" in codes


EPOCHS = """\
from accelerate import Accelerator


def main(loader, args, model, optimizer):
    accelerator = Accelerator(gradient_accumulation_steps=args.steps)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    global_step, start = 0, -1
    for epoch in range(args.epochs + args.max_train_steps):
        HEAD
        for batch in loader:
            with accelerator.accumulate(model):
                accelerator.backward(model(batch))
                optimizer.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                global_step += 1
"""


@pytest.mark.parametrize(
    ("head", "is_trigger"),
    [
        ("if global_step >= args.max_train_steps or (epoch >= args.epochs and global_step == start): break", False),
        ("if global_step == args.max_train_steps: break", False),
        ("if global_step == args.max_train_steps: return save()", False),
        ("if global_step == args.max_train_steps: raise Done", False),
        ("if global_step % 9 == 0: save(); break", False),
        ("if global_step % 9 == 0: save(); return", False),
        ("if global_step % 9 == 0:\n            if retry: continue\n            break", True),
        ("if global_step % 9 == 0: save()", True),
    ],
)
def test_what_leaves_the_loop_above_the_step_cannot_fire_twice(head, is_trigger):
    result = rewrite(EPOCHS.replace("HEAD", head).encode())
    codes = [site.code for site in result.sites if site.outcome is Outcome.REFUSED]
    assert codes == (["trigger-before-step"] if is_trigger else [])
    assert b"not accelerator.optimizer_step_was_skipped" in result.after


@pytest.mark.parametrize("test", ["global_step != 9", "global_step not in (3, 9)", "global_step % 9 != 0"])
def test_the_other_arm_of_a_test_on_other_values_runs_after_an_applied_update_only(loop, test):
    head = f"if {test}:\n    wait()\nelse:\n    "
    assert loop.becomes(f"{COUNT}{head}save()", f"{COUNTED}{head}if {GATE}:\n        save()")


def test_a_save_whose_answer_is_kept_is_gated_where_nothing_reads_an_old_one(make_loop):
    loop, save = make_loop(accumulation=""), "path = accelerator.save_state(global_step)\n"
    assert loop.becomes(COUNT + save, f"{COUNTED}if {GATE}:\n    {save}")
    assert "late-name" in loop.codes(f"{COUNT}{save}print(path)")
    assert "held-log" in make_loop().codes(COUNT + save)


@pytest.mark.parametrize("skip", [True, False])
def test_what_fires_in_the_other_arm_fires_once_a_value(make_loop, skip):
    """The rewritten lines themselves, run: each checkpoint once, with an update skipped at the value that fires."""
    loop = make_loop(step="optimizer.step()\n")
    body = f"{COUNT}if global_step % 2 != 0:\n    others.append(global_step)\nelse:\n    save(global_step)\n"
    lines = textwrap.dedent(loop.rewrite(body).after.decode().rpartition("optimizer.step()\n")[2])
    saves, others, accelerator = [], [], SimpleNamespace(sync_gradients=True)
    names = {"global_step": 0, "save": saves.append, "others": others, "accelerator": accelerator}
    for batch in range(5):
        accelerator.optimizer_step_was_skipped = skip and batch == 2
        exec(compile(lines, "loop", "exec"), names)
    assert saves == [2, 4]
    assert others == ([1, 3] if skip else [1, 3, 5])


CLEARS = "if global_step % 2 == 0:\n    accelerator.log({'loss': window}, step=global_step)\n    window = 0.0\n"


def test_sums_that_a_trigger_clears_are_freed_of_skipped_updates(loop):
    """Else the loss of a skipped update goes into the mean that is logged at the next multiple."""
    assert (
        loop.rewrite(COUNT + CLEARS)
        .after.decode()
        .endswith(
            textwrap.indent(
                f"{COUNTED}if {GATE}:\n{textwrap.indent(CLEARS, '    ')}    applied_window = window + 0\n"
                "elif accelerator.sync_gradients:\n    window = applied_window + 0\n",
                " " * 8,
            )
        )
    )


def test_without_accumulation_every_other_iteration_is_a_skipped_one(make_loop):
    plain = make_loop(accumulation="", step="window += 1\naccelerator.backward(model(batch))\noptimizer.step()\n")
    after = plain.rewrite(f"global_step += 1\nx = 1\nprint(x)\n{CLEARS}").after.decode()
    assert "        else:\n            window = applied_window + 0\n" in after


def test_sums_that_are_cleared_behind_an_exit_are_refused(loop):
    body = (
        "if global_step % 2 != 0:\n    continue\naccelerator.log({'loss': window}, step=global_step)\nwindow = 0.0\n"
    )
    codes = loop.codes(COUNT + body)
    assert "window-of-updates" in codes
    assert "trigger-gated" not in codes


def test_a_save_that_marks_what_its_test_asks_is_made_once_and_stays(make_loop):
    """Gated alone it would be lost: the mark moves on and the test does not hold again."""
    plain = make_loop(accumulation="", step="optimizer.step()\n")
    body = "if global_step - last >= 3:\n    accelerator.save_state(f'{global_step}')\n    last = global_step\n"
    assert textwrap.indent(body, " " * 8) in plain.rewrite(f"x = 1\nprint(x)\n{body}global_step += 1").after.decode()


def test_a_log_at_every_micro_batch_of_a_loop_that_accumulates_by_a_modulo_stays(make_loop):
    """As in a loop that accumulates by the accelerator: gated it would be written less often in finite runs too."""
    attempt = (
        "accelerator.backward(model(batch))\nif (step + 1) % 4 == 0:\n    optimizer.step()\n    global_step += 1\n"
    )
    loop = make_loop(accumulation="", step=attempt)
    result = loop.rewrite("accelerator.log({'loss': 1.0}, step=global_step)\n")
    assert "held-log" in {site.code for site in result.sites}
    assert result.after.decode().endswith("        accelerator.log({'loss': 1.0}, step=global_step)\n")
