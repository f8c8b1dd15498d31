"""What a block that asks the flag already clears is cleared for skipped updates too."""

import pytest

SKIPPED = "accelerator.optimizer_step_was_skipped"
GATE = f"accelerator.sync_gradients and not {SKIPPED}"
BLOCK = f"if {GATE}:\n    global_step += 1\n    window = 0.0"


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        (BLOCK, f"{BLOCK}\nelif accelerator.sync_gradients:\n    window = 0.0"),
        (
            BLOCK.replace("if acc", "if args.train and acc"),
            BLOCK.replace("if acc", "if args.train and acc")
            + "\nelif args.train and accelerator.sync_gradients:\n    window = 0.0",
        ),
        (
            f"{BLOCK}\nelif accelerator.sync_gradients:\n    other = 0.0",
            f"{BLOCK}\nelif accelerator.sync_gradients:\n    other = 0.0\n    window = 0.0",
        ),
        (
            f"if not accelerator.sync_gradients or {SKIPPED}:\n    continue\nglobal_step += 1\nwindow = 0.0",
            f"if accelerator.sync_gradients and {SKIPPED}:\n    window = 0.0\n"
            f"if not accelerator.sync_gradients or {SKIPPED}:\n    continue\nglobal_step += 1\nwindow = 0.0",
        ),
    ],
    ids=["no other arm", "another clause", "an arm that clears something else", "behind an exit"],
)
def test_a_reset_goes_where_skipped_updates_come_by(loop, body, wanted):
    assert loop.becomes(body, wanted)


def test_without_accumulation_the_other_arm_needs_no_test(make_loop):
    plain = make_loop(accumulation="", step="window += 1\naccelerator.backward(model(batch))\noptimizer.step()\n")
    body = f"if not {SKIPPED}:\n    global_step += 1\n    window = 0.0"
    assert plain.becomes(body, f"{body}\nelse:\n    window = 0.0")


def test_gradients_are_cleared_behind_a_skipped_update_too(make_loop):
    bare = make_loop(
        step="with accelerator.accumulate(model):\n    accelerator.backward(model(batch))\n    optimizer.step()\n"
    )
    body = f"if {GATE}:\n    global_step += 1\n    optimizer.zero_grad()"
    assert bare.becomes(body, f"{body}\nelif accelerator.sync_gradients:\n    optimizer.zero_grad()")


def test_a_sum_over_several_updates_is_put_back(loop):
    block = f"if {GATE}:\n    global_step += 1\n    if global_step % 9 == 0:\n        window = 0.0"
    after = loop.rewrite(block).after.decode()
    assert after.endswith(
        "            applied_window = window + 0\n        elif accelerator.sync_gradients:\n"
        "            window = applied_window + 0\n"
    )


@pytest.mark.parametrize(
    "body",
    [
        f"{BLOCK}\nelse:\n    x = 1",
        f"{BLOCK}\nelif args.train:\n    x = 1",
        f"{BLOCK}\nelif accelerator.sync_gradients:\n    x = 1\nelse:\n    x = 2",
        BLOCK.replace("if acc", "if (synced := acc").replace("gradients and", "gradients) and"),
    ],
    ids=["another arm", "a test of something else", "two more arms", "a test that names a value"],
)
def test_where_there_is_no_place_for_it_the_reset_is_asked_for(loop, body):
    assert "reset-missing" in loop.stays(body)


def test_a_clause_that_is_negated_stays_so(loop):
    block = BLOCK.replace("if acc", "if not args.dry and acc")
    assert loop.becomes(block, f"{block}\nelif not args.dry and accelerator.sync_gradients:\n    window = 0.0")


def test_a_reset_under_a_test_keeps_that_test_above_an_exit(loop):
    leave = f"if not accelerator.sync_gradients or {SKIPPED}:\n    continue\n"
    rest = "global_step += 1\nif args.short:\n    window = 0.0"
    reset = f"if accelerator.sync_gradients and {SKIPPED}:\n    if args.short:\n        window = 0.0\n"
    assert loop.becomes(leave + rest, reset + leave + rest)


@pytest.mark.parametrize(
    "body",
    [
        f"if {GATE}:\n    global_step += 1\n    with guard():\n        window = 0.0",
        f"if {GATE}:\n    global_step += 1\n    if due():\n        window = 0.0",
        f"total += 1\n{BLOCK}\n    with guard():\n        total = 0.0",
        f"{BLOCK}\nelif accelerator.sync_gradients or args.short:\n    x = 1",
        BLOCK.replace("if acc", "if args.short and acc")
        + "\nelif args.short or accelerator.sync_gradients:\n    x = 1",
        f"if not (accelerator.sync_gradients and {SKIPPED}):\n    global_step += 1\n    window = 0.0",
    ],
    ids=[
        "inside with",
        "under a call",
        "one of two",
        "an arm for more",
        "an arm for either",
        "another form of the test",
    ],
)
def test_what_cannot_be_repeated_or_placed_is_asked_for(loop, body):
    result = loop.rewrite(body)
    assert result.after == result.before
    assert {"reset-missing", "flag-without-sync"} & {site.code for site in result.sites}


def test_a_sum_whose_start_is_not_seen_is_asked_for(loop):
    body = f"args.sum += 1\nif {GATE}:\n    global_step += 1\n    if global_step % 9 == 0:\n        args.sum = 0.0"
    assert "reset-missing" in loop.stays(body)


def test_the_reset_is_reported_at_its_block(loop):
    result = loop.rewrite(BLOCK)
    (site,) = [site for site in result.sites if site.code == "reset-added"]
    assert result.before.decode().splitlines()[site.line - 1].strip() == BLOCK.splitlines()[0]
