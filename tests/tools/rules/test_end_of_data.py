"""Rates, answers and actions at the end of the data: what a skipped update must not bend or swallow."""

import pytest

GATE = "accelerator.sync_gradients and not accelerator.optimizer_step_was_skipped"
SYNC = "if accelerator.sync_gradients:\n    global_step += 1\n"


@pytest.mark.parametrize("rate", ["window / (time.time() - start)", "(time.time() - start) / window"])
def test_a_time_stamp_is_set_anew_with_the_sum_that_is_measured_against_it(loop, rate):
    rest = f"    global_step += 1\n    print({rate})\n    window = 0\n    start = time.time()\n"
    arm = "elif accelerator.sync_gradients:\n    window = 0\n    start = time.time()"
    assert loop.becomes(f"if accelerator.sync_gradients:\n{rest}", f"if {GATE}:\n{rest}{arm}")


def test_a_time_stamp_that_is_set_by_a_name_asks_the_clock_itself(loop):
    rest = "now = time.perf_counter()\n    spent = now - start\n    print(window / spent)\n    window = 0\n    start = now"
    after = loop.rewrite(f"{SYNC}    {rest}").after.decode()
    assert after.endswith("    window = 0\n            start = time.perf_counter()\n")


def test_a_time_stamp_that_cannot_be_set_anew_keeps_its_block(loop):
    rest = "now = clock(accelerator)\n    print(window / (now - start))\n    window = 0\n    start = now"
    assert "mixed-reset" in loop.stays(f"{SYNC}    {rest}")


def test_a_rate_over_several_updates_keeps_its_block(loop):
    inner = "        print(window / (time.time() - start))\n        window = 0\n        start = time.time()"
    assert "window-of-updates" in loop.stays(f"{SYNC}    if global_step % 9 == 0:\n{inner}")


def test_a_time_stamp_that_no_sum_is_measured_against_stays_alone(loop):
    after = loop.rewrite(
        f"{SYNC}    print(time.time() - start)\n    window = 0\n    start = time.time()"
    ).after.decode()
    assert after.endswith("elif accelerator.sync_gradients:\n            window = 0\n")


@pytest.mark.parametrize("test", ["step == len(loader) - 1", "step + 1 >= len(loader)", "last"])
def test_an_action_at_the_end_of_the_data_is_left(loop, test):
    given = "last = step == len(loader) - 1\n"
    action = f"if accelerator.sync_gradients and {test}:\n    accelerator.save_state(f'{{global_step}}')"
    result = loop.rewrite(f"{given}{SYNC}{action}")
    assert "boundary" in {site.code for site in result.sites}
    assert result.after.decode().endswith(loop.source(action).rpartition("zero_grad()\n")[2])


@pytest.mark.parametrize(
    ("given", "test", "is_end"),
    [
        ("n = len(loader)", "step == n - 1", True),
        ("n = len(loader) - 1", "n <= step", True),
        ("n = sum(1 for _ in loader)", "step + 1 == n", True),
        ("all = len(loader)\nn = all // 2", "step == n", True),
        ("n = math.ceil(len(loader) / args.steps)", "step == n", True),
        ("n = sum(losses)", "step == n", False),
        ("n = args.batches", "step == n", False),
        ("n, m = shape", "step == n", False),
        ("n = 9\nn = len(loader)", "step == n", False),
        ("n = math.ceil(args.max_steps / len(loader))", "step == n", False),
        ("n = len(loader)", "step % n == 0", False),
    ],
)
def test_the_length_of_the_data_may_have_a_name(loop, given, test, is_end):
    action = f"if accelerator.sync_gradients and {test}:\n    accelerator.save_state(f'{{global_step}}')"
    result = loop.rewrite(f"{given}\n{SYNC}{action}")
    is_left = result.after.decode().endswith(loop.source(action).rpartition("zero_grad()\n")[2])
    assert is_left == is_end


def test_an_action_at_the_end_of_the_data_among_what_counts_keeps_its_block(loop):
    assert "unclear-test" in loop.stays(f"{SYNC}    if step == len(loader) - 1:\n        save()")


def test_a_counter_at_the_end_of_the_data_keeps_its_block(loop):
    assert "unclear-test" in loop.stays(
        "if accelerator.sync_gradients and step == len(loader) - 1:\n    global_step += 1\n    ema.update()"
    )


def test_an_answer_of_the_counter_that_is_read_behind_the_block_keeps_the_block(loop):
    assert "late-name" in loop.stays(f"{SYNC}    save_now = global_step % 9 == 0\nif save_now:\n    save()")


@pytest.mark.parametrize(
    "body",
    [
        f"save_now = False\n{SYNC}    save_now = global_step % 9 == 0\nif save_now:\n    save()",
        f"{SYNC}    save_now = global_step % 9 == 0\n    if save_now:\n        save()",
        f"{SYNC}    save_now = global_step % 9 == 0\nif accelerator.sync_gradients and save_now:\n    save()",
    ],
)
def test_an_answer_that_no_skipped_update_reads_again_is_no_obstacle(loop, body):
    assert "gated" in loop.codes(body)
