"""A block that asks the flag already and clears a window that a skipped update leaves standing."""

from __future__ import annotations

import re

import pytest

from tools.rewrite import rewrite
from tools.site import Outcome

GATE = "accelerator.sync_gradients and not accelerator.optimizer_step_was_skipped"
BLOCK = f"if {GATE}:\n    global_step += 1\n    accelerator.log({{'loss': window}}, step=global_step)\n"
BARE = "with accelerator.accumulate(model):\n    loss = model(batch)\n    accelerator.backward(loss)\n    optimizer.step()\n"


def refused(loop, body: str) -> list[str]:
    return [site.code for site in loop.rewrite(body).sites if site.outcome is Outcome.REFUSED]


def standing(loop, body: str) -> bool:
    """Whether something is said, and done if possible, about what a skipped update leaves standing."""
    return bool(
        {site.code for site in loop.rewrite(body).sites} & {"reset-missing", "reset-added", "sums-kept", "data-kept"}
    )


def found(loop, body: str) -> list[str]:
    """The codes of the gated block alone."""
    return [site.code for site in loop.rewrite(body).sites if site.kind == "applied-update test"]


LEFT_STANDING = {
    "nothing": "    window = 0.0",
    "another name": "    window = 0.0\nelif accelerator.sync_gradients:\n    train_loss = 0.0",
    "once an epoch": "    window = 0.0\nif step == 0:\n    print(window)",
    "by one process": "    if accelerator.is_main_process:\n        window = 0.0",
    "over several updates": "    if global_step % 9 == 0:\n        window = 0.0",
    "by the gated block of another line": f"    window = 0.0\nif {GATE}:\n    window = 0.0",
}


@pytest.mark.parametrize("name", LEFT_STANDING)
def test_a_window_that_only_the_gated_block_clears_is_reported(loop, name):
    assert standing(loop, BLOCK + LEFT_STANDING[name])


def test_the_message_names_what_stays_and_where_to_clear_it(loop):
    data = loop.source(BLOCK + "    window = 0.0\nelif other:\n    train_loss = 0.0").encode()
    (site,) = [site for site in rewrite(data).sites if site.code == "reset-missing"]
    assert site.outcome is Outcome.REFUSED
    assert "`window`" in site.message
    assert "train_loss" not in site.message
    assert site.line == data[: data.index(BLOCK.encode()[:40])].count(b"\n") + 1


def test_the_message_names_all_that_stays(loop):
    body = (
        BLOCK.replace("    accelerator", "    losses.clear()\n    accelerator")
        + "    window = 0.0\nelif other:\n    x = 1"
    )
    (site,) = [site for site in loop.rewrite("losses.append(loss)\n" + body).sites if site.code == "reset-missing"]
    assert re.search(r"clears `\w+`, `\w+` for applied updates only", site.message)
    assert {"`window`", "`losses`"} <= set(re.findall(r"`\w+`", site.message))


@pytest.mark.parametrize(
    "test",
    ["accelerator.optimizer_step_was_skipped or i % 9 == 0", "i % 9 == 0 or accelerator.optimizer_step_was_skipped"],
)
def test_what_may_run_for_applied_updates_too_adds_to_a_window(loop, test):
    body = f"if {test}:\n    total += 1\nif {GATE}:\n    global_step += 1\n    total = 0"
    assert standing(loop, body)


def test_several_arms_for_skipped_updates_are_all_known_as_such(loop):
    body = (
        "if accelerator.optimizer_step_was_skipped:\n    skips += 1\n"
        f"if accelerator.optimizer_step_was_skipped:\n    print(batch)\nif {GATE}:\n    skips = 0\n    global_step += 1"
    )
    assert not standing(loop, body)


@pytest.mark.parametrize(
    "growth",
    [
        "total = total + loss",
        "if i % 9:\n    total += loss",
        "if i % 9:\n    print(loss)\nelse:\n    total += loss",
    ],
)
def test_a_sum_that_grows_by_other_means_is_reported_too(loop, growth):
    body = f"{growth}\nif {GATE}:\n    global_step += 1\n    total = 0.0"
    assert standing(loop, body)


CLEARED = {
    "in an arm of the test": "    window = 0.0\nelif accelerator.sync_gradients:\n    window = 0.0",
    "in the other arm": "    window = 0.0\nelse:\n    window = 0.0",
    "behind the block": "    window = 0.0\nif accelerator.sync_gradients:\n    window = 0.0",
    "by putting it back": "    applied = window + 0\n    if global_step % 9 == 0:\n        window = 0.0\n"
    "elif accelerator.sync_gradients:\n    window = applied + 0",
    "nowhere": "    pass",
}


@pytest.mark.parametrize("name", CLEARED)
def test_a_window_that_a_skipped_update_clears_as_well_is_right(loop, name):
    assert found(loop, BLOCK + CLEARED[name])[:1] == ["applied"]


@pytest.mark.parametrize(
    "body",
    [
        # what only a skipped update adds to
        f"if accelerator.optimizer_step_was_skipped:\n    skips += 1\nif {GATE}:\n    skips = 0\n    global_step += 1",
        f"if {GATE}:\n    skips = 0\n    global_step += 1\nelif accelerator.sync_gradients:\n    skips += 1",
        f"if accelerator.optimizer_step_was_skipped and step % 9 == 0:\n    skips += 1\nif {GATE}:\n    skips = 0\n"
        "    global_step += 1",
        # what only an applied update adds to
        f"if {GATE}:\n    total += loss\n    global_step += 1\nif {GATE} and global_step % 9 == 0:\n    total = 0.0",
        # what the block itself fills
        f"if {GATE}:\n    meter.update(loss)\n    global_step += 1\n    meter.reset()",
        # what an iteration starts anew
        f"total = 0.0\ntotal += loss\nif {GATE}:\n    global_step += 1\n    total = 0.0",
    ],
)
def test_what_no_skipped_update_adds_to_a_window_is_not_asked_for(loop, body):
    assert not standing(loop, body)


@pytest.mark.parametrize(
    "body",
    [
        "if accelerator.optimizer_step_was_skipped:\n    continue\nglobal_step += 1\nwindow = 0.0",
        "if not accelerator.optimizer_step_was_skipped:\n    global_step += 1\n    window = 0.0",
        "if accelerator.optimizer_step_was_skipped:\n    x = 1\nelse:\n    global_step += 1\n    window = 0.0",
    ],
)
def test_other_ways_to_ask_are_the_same(make_loop, body):
    assert standing(make_loop(accumulation=""), body)


def test_an_early_leave_that_clears_first_is_right(make_loop):
    body = "if accelerator.optimizer_step_was_skipped:\n    window = 0.0\n    continue\nglobal_step += 1\nwindow = 0.0"
    assert refused(make_loop(accumulation=""), body) == []


def test_gradients_that_only_an_applied_update_clears_are_reported(make_loop):
    body = f"if {GATE}:\n    global_step += 1\n    optimizer.zero_grad()\nelif other:\n    x = 1"
    (code,) = refused(make_loop(step=BARE), body)
    assert code == "reset-missing"
    (site,) = [site for site in make_loop(step=BARE).rewrite(body).sites if site.code == code]
    assert site.message.endswith(
        "those of a skipped update stay, infinite as they are, and every later update is skipped too. "
        "Clear them behind each step"
    )
    assert (
        refused(
            make_loop(step=BARE),
            body.replace("other", "accelerator.sync_gradients").replace("x = 1", "optimizer.zero_grad()"),
        )
        == []
    )
    assert refused(make_loop(step="optimizer.zero_grad()\n" + BARE), body) == []


def test_what_a_function_clears_for_a_skipped_update_counts(loop):
    body = BLOCK + "    window = 0.0\nelif accelerator.sync_gradients:\n    clear()\n"
    function = "def clear():\n    global window\n    window = 0.0\n"
    text = loop.source(body).replace("def main", function + "\n\ndef main")
    data = text.replace("    accelerator = Acc", "    global window\n    accelerator = Acc").encode()
    compile(data, "loop", "exec")
    codes = [site.code for site in rewrite(data).sites if site.outcome is Outcome.REFUSED]
    assert "reset-missing" not in codes
