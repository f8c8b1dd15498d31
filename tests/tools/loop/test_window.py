"""What a skipped update must clear as well: state of the window, whoever adds to it and wherever it starts."""

import textwrap

import pytest

from tools.rewrite import rewrite

LOOP = """\
from accelerate import Accelerator

bank, notes = [], []


def more():
    global samples_seen
    samples_seen += 2


def flush():
    again()


def again():
    if notes:
        flush()
    empty()


def empty():
    bank.clear()


class Net(Module):
    def forward(self, batch):
        bank.append(batch)


class Writer:
    def flush(self):
        self.losses = []

    def flush_all(self):
        self.losses = []
        bank.clear()


class Run:
    def main(self, model, optimizer, loader, given):
        accelerator = Accelerator(gradient_accumulation_steps=2)
        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        writer = Writer()
        global_step, total, other, losses, stats, state = 0, 0.0, 0.0, {}, Stats(), {"step": 0, "loss": 0.0}

        def report():
            print(sum(given))
            given.clear()

        for step, batch in enumerate(loader):
            with accelerator.accumulate(model):
                loss = model(batch)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            BODY
            if accelerator.sync_gradients:
                global_step += 1
                BLOCK
"""


def text(body, block, arm=""):
    """A loop with statements in its body and in its block; `arm` is what a skipped update runs."""
    gate = " and not accelerator.optimizer_step_was_skipped" if arm is not None else ""
    lines = LOOP.replace("BODY", textwrap.indent(body, " " * 12).strip()).replace(
        "BLOCK", textwrap.indent(block, " " * 16).strip()
    )
    if arm:
        lines += f"            elif accelerator.sync_gradients:\n{textwrap.indent(arm, ' ' * 16)}\n"
    return lines.replace(
        "if accelerator.sync_gradients:\n                global",
        f"if accelerator.sync_gradients{gate}:\n                global",
    )


def outcome(body, block):
    return rewrite(text(body, block, None).encode())


def told(body, block, code):
    """The messages of one code."""
    return [site.message for site in outcome(body, block).sites if site.code == code]


@pytest.mark.parametrize(
    ("body", "block"),
    [
        ("total += loss", "total = 0.0"),
        ("total = total + loss\nnotes.append(loss)", "total = 0.0\nnotes.clear()"),
        ("if batch.is_first:\n    total = 0.0\ntotal += loss", "total = 0.0"),
        ("if batch.is_first:\n    total = 0.0\ntotal = total + loss", "total = 0.0"),
        ("total = total + loss\nif batch.is_last:\n    total = 0.0", "total = 0.0"),
        ("stats = train(stats)\nstats.loss += loss", "stats.loss = 0.0"),
        ("losses[step] = loss", "losses = {}"),
        ("x = batch.x", "bank[:] = []"),
        ("given.append(loss)", "given.clear()"),
        ("self.losses.append(loss)", "self.losses = []"),
    ],
)
def test_what_a_batch_adds_to_is_cleared_at_skipped_updates_too(body, block):
    assert outcome(body, block).after.decode() == text(body, block, block)


@pytest.mark.parametrize(
    ("body", "block"),
    [
        ("total = 0.0\ntotal = total + loss", "total = 0.0"),
        ("stats = Stats()\nstats.loss += loss", "stats.loss = 0.0"),
        ("with timer:\n    stats = Stats()\nstats.loss += loss", "stats.loss = 0.0"),
        ("with timer:\n    with lock:\n        total = 0.0\ntotal += loss", "total = 0.0"),
        ("state = {}\nstate['loss'] = state['loss'] + loss", "state['loss'] = 0.0"),
        ("losses = {}\nlosses[step] = loss", "losses = {}"),
        ("losses[step] = loss", "total = 0.0"),
        ("total += loss", "for x in xs:\n    best = 0.0"),
        ("total += loss", "with lock:\n    best = 0.0"),
        ("total += loss", "with lock:\n    for meter in meters:\n        meter.reset()"),
        ("self.losses.append(loss)", "writer.flush()"),
    ],
)
def test_what_each_batch_starts_anew_needs_no_help(body, block):
    assert outcome(body, block).after.decode() == text(body, block)


def test_a_function_may_clear_what_the_function_round_it_was_given():
    result = outcome("given.append(loss)", "report()").after.decode()
    assert result == text("given.append(loss)", "report()", "given.clear()")


def test_functions_that_call_each_other_are_followed_to_what_they_clear():
    assert outcome("bank.append(loss)", "flush()").after.decode() == text(
        "bank.append(loss)", "flush()", "bank.clear()"
    )


def test_all_that_is_cleared_is_told_of():
    block = "total = 0.0\nfor meter in meters:\n    meter.reset()\nfor x in xs:\n    bank.clear()"
    (message,) = told("total += loss", block, "reset-added")
    assert message.endswith("(total, meter, bank)")


@pytest.mark.parametrize(
    ("body", "names"),
    [
        ("total += loss", ["total"]),
        ("state['step'] += 1", []),
        ("state['loss'] += loss", ["state"]),
        ("state['step'] += 1\nstate['loss'] += loss", ["state"]),
        ("if batch.is_first:\n    total = 0.0\ntotal += loss", []),
        ("batch = batch.to('cuda')", []),
    ],
)
def test_a_sum_that_nobody_clears_is_told_of(body, names):
    found = told(body, "accelerator.log({'loss': total / 2, 'state': state, 'batch': batch})", "never-reset")
    assert [message.split("`")[1] for message in found] == names


def test_two_sums_over_several_updates_both_go_back():
    block = "if global_step % 5 == 0:\n    other = 0.0\nif args.log:\n    pass\nelif global_step % 9 == 0:\n    total = 0.0"
    after = outcome("total += loss\nother += loss", block).after.decode()
    arm = after.partition("elif accelerator.sync_gradients:\n")[2]
    assert [line.strip() for line in arm.splitlines()] == [
        "other = applied_other + 0",
        "total = applied_total + 0",
    ]


def test_a_block_over_several_updates_that_may_be_left_says_why_it_stays():
    found = told(
        "total += loss",
        "if global_step % 9 == 0:\n    total = 0.0\nif batch.is_last:\n    continue",
        "window-of-updates",
    )
    assert found == ["`total` gathers over several updates and the block can be left by `continue`"]


def test_all_data_that_a_block_counts_is_told_of():
    (message,) = told(
        "x = 1", "tokens_seen += 8\nif args.log:\n    data_seen += 2\nmore()\nepochs_seen += 1", "data-kept"
    )
    assert message.partition(": ")[2] == "tokens_seen += 8; data_seen += 2; samples_seen += 2; epochs_seen += 1"


def test_a_method_that_clears_its_own_and_more_is_left_whole():
    (message,) = told("writer.losses.append(loss)", "writer.flush_all()", "nested-reset")
    assert "`flush_all`, which clears `bank`, `writer.losses`" in message
