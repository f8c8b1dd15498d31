"""Tests on multiples that are asked at some values of the counter only."""

import pytest

TURNS = """\
if generator_step:
    optimizer.step()
else:
    other_optimizer.step()
if accelerator.sync_gradients:
    global_step += 1
"""
BOTH = {"prepared": "optimizer, other_optimizer", "step": TURNS}


def test_a_multiple_that_was_crossed_is_asked_for(make_loop):
    body = """
    if accelerator.sync_gradients and not generator_step:
        if global_step % args.log_steps == 0:
            save()
        if main and global_step % (2 * n) == 0:
            save()
    """
    after = make_loop(**BOTH).rewrite(body).after.decode()
    assert "    last_global_step = global_step\n    for step, batch" in after
    assert "if global_step // args.log_steps > last_global_step // args.log_steps:" in after
    assert "if main and global_step // (2 * n) > last_global_step // (2 * n):" in after
    assert "                save()\n            last_global_step = global_step\n" in after


def test_a_block_that_every_update_reaches_keeps_its_test(make_loop):
    body = "if accelerator.sync_gradients and main:\n    if global_step % 9 == 0:\n        save()"
    assert "multiple-crossed" not in make_loop(**BOTH).codes(body)


def test_a_block_that_counts_itself_keeps_its_test(make_loop):
    body = (
        "if accelerator.sync_gradients and not generator_step:\n    other += 1\n    if other % 9 == 0:\n        save()"
    )
    assert "multiple-crossed" not in make_loop(**BOTH).codes(body)


@pytest.mark.parametrize("end", ["    if stop:\n        break"])
def test_a_block_that_can_be_left_early_is_refused(make_loop, end):
    body = (
        f"if accelerator.sync_gradients and not generator_step:\n    if global_step % 9 == 0:\n        save()\n{end}"
    )
    assert "crossing" in make_loop(**BOTH).codes(body)
