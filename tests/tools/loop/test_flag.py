"""Which flag is asked: the accelerator's or the optimizer's, in the words of the file, or none with its reason."""

import pytest

from tools.loop.flag import negated
from tools.rewrite import Options, rewrite

IMPORT = "from accelerate import Accelerator\n"
TWO = f"""\
{IMPORT}

def main(model, critic, loader):
    first, second = Accelerator(gradient_accumulation_steps=2), Accelerator(gradient_accumulation_steps=2)
    optimizer = first.prepare(SGD(model))
    critic_optimizer = second.prepare(SGD(critic))
    steps = critic_steps = 0
    for batch in loader:
        first.backward(model(batch))
        second.backward(critic(batch))
        optimizer.step()
        critic_optimizer.step()
        if first.sync_gradients:
            steps += 1
        if second.sync_gradients:
            critic_steps += 1
"""


def gate(text, **options):
    """The lines that a rewrite puts in, and the codes of what it refuses with their messages."""
    result = rewrite(text.encode(), Options(**options))
    old = text.splitlines()
    new = [line.strip() for line in result.after.decode().splitlines() if line not in old]
    return new, {site.code: site.message for site in result.sites if site.outcome.value == "refused"}


TURNS = f"""\
{IMPORT}

def main(model, critic, loader):
    accelerator = Accelerator(gradient_accumulation_steps=2)
    optimizer, critic_optimizer, other = accelerator.prepare(SGD(model), SGD(critic), SGD(x))
    steps = 0
    for batch in loader:
        accelerator.backward(model(batch))
        if batch.is_odd:
            optimizer.step()
        else:
            critic_optimizer.step()
        if accelerator.sync_gradients:
            steps += 1
"""


def test_a_guard_that_asks_one_of_two_accelerators_gets_the_flag_of_that_one():
    lines, refused = gate(TWO)
    assert lines == [
        "if first.sync_gradients and not first.optimizer_step_was_skipped:",
        "if second.sync_gradients and not second.optimizer_step_was_skipped:",
    ]
    assert refused == {}


def test_a_guard_that_asks_an_accelerator_from_elsewhere_may_ask_the_one_that_prepared():
    text = TURNS.replace("model, critic, loader", "model, critic, loader, given").replace(
        "if accelerator.", "if given."
    )
    text = text.replace(
        "        if batch.is_odd:\n            optimizer.step()\n        else:\n            critic_", "        "
    )
    lines, refused = gate(text)
    assert lines == ["if given.sync_gradients and not optimizer.step_was_skipped:"]
    assert refused == {}


OUTSIDE = """\
def train(loader, optimizer):
    global_step = 0
    for batch in loader:
        batch.sum().backward()
        optimizer.step()
        global_step += 1
    return global_step
"""


def test_an_accelerator_of_the_module_is_in_reach():
    made = f"{IMPORT}\naccelerator = Accelerator()\n\n\n"
    lines, _ = gate(made + OUTSIDE + "\n\ntrain(loader, accelerator.prepare(SGD()))\n")
    assert lines == ["if not accelerator.optimizer_step_was_skipped:", "global_step += 1"]


def test_an_accelerator_that_only_its_calls_show_is_in_reach():
    text = "from accelerate import utils\nfrom setup import *\n\n\n" + OUTSIDE.replace(
        "batch.sum().backward()", "ACCELERATOR.backward(batch.sum())"
    )
    assert gate(text)[0] == ["if not ACCELERATOR.optimizer_step_was_skipped:", "global_step += 1"]


def test_without_an_accelerator_in_reach_it_is_said_what_to_do():
    text = "from accelerate.state import GradientState\n\nstate = GradientState()\n\n\n" + OUTSIDE
    lines, refused = gate(
        text.replace("        global_step", "        if state.sync_gradients:\n            global_step")
    )
    assert lines == []
    assert refused == {
        "unknown-accelerator": "no accelerator is in reach here, so its flag cannot be read; hand it over"
    }


def test_with_several_in_reach_and_nothing_that_tells_them_apart_it_is_said_so():
    made = f"{IMPORT}\nfirst, second = Accelerator(), Accelerator()\n\n\n"
    lines, refused = gate(made + OUTSIDE)
    assert lines == []
    assert refused == {
        "unknown-accelerator": "several accelerators are in reach here, and the file does not show which one prepared "
        "`optimizer`"
    }


def test_a_loop_over_optimizers_has_no_single_flag():
    turns = TURNS[TURNS.index("        if batch.is_odd") : TURNS.index("        if accelerator.sync")]
    each = "        for opt in (optimizer, critic_optimizer):\n            opt.step()\n"
    lines, refused = gate(TURNS.replace(turns, each))
    assert lines == []
    assert refused == {
        "several-optimizers": "line 11 steps several optimizers in a loop; each may be skipped alone, so no single flag "
        "says whether the update happened. Count in that loop, each by its own `step_was_skipped`"
    }


def test_a_counted_optimizer_that_takes_no_turn_is_none_of_them():
    lines, refused = gate(TURNS, counted_optimizer="other")
    assert lines == []
    assert "`--counted-optimizer other` names none of them" in refused["several-optimizers"]


@pytest.mark.parametrize("quote", ["'", '"'])
def test_an_optimizer_in_a_dictionary_keeps_the_quotes_of_the_file(quote):
    text = TURNS.replace("optimizer, critic_optimizer, other =", "optimizers['model'], optimizers['critic'] =")
    text = text.replace(
        "accelerator.prepare(SGD(model), SGD(critic), SGD(x))", "accelerator.prepare(SGD(model), SGD(critic))"
    )
    text = text.replace("            optimizer.step()", "            optimizers['model'].step()")
    text = text.replace("critic_optimizer.step()", "optimizers['critic'].step()").replace("'", quote)
    lines, _ = gate(text, counted_optimizer="optimizers['model']")
    flag = f"optimizers[{quote}model{quote}].step_was_skipped"
    assert lines == [f"if accelerator.sync_gradients and not {flag} and batch.is_odd:"]


@pytest.mark.parametrize(
    ("clause", "opposite"),
    [
        ("ready", "not ready"),
        ("batch.is_odd", "not batch.is_odd"),
        ("not ready", "ready"),
        ("not f(x, y)", "not (not f(x, y))"),
        ("step % 2 == 0", "not (step % 2 == 0)"),
    ],
)
def test_the_opposite_of_a_clause(clause, opposite):
    assert negated(clause) == opposite


def test_two_accelerators_that_take_turns_are_told_apart():
    text = f"""\
{IMPORT}

def main(model, critic, loader):
    first, second = Accelerator(), Accelerator()
    optimizer = first.prepare(SGD(model))
    critic_optimizer = second.prepare(SGD(critic))
    steps = critic_steps = 0
    for batch in loader:
        if batch.is_odd:
            first.backward(model(batch))
            optimizer.step()
            steps += 1
        else:
            second.backward(critic(batch))
            critic_optimizer.step()
            critic_steps += 1
"""
    lines, refused = gate(text)
    assert [line for line in lines if line.startswith("if")] == [
        "if not first.optimizer_step_was_skipped:",
        "if not second.optimizer_step_was_skipped:",
    ]
    assert refused == {}


def test_a_step_on_too_many_ways_is_left_and_told_of():
    turns = TURNS[TURNS.index("        if batch.is_odd") : TURNS.index("        if accelerator.sync")]
    many = "".join(f"        if batch.x{i}:\n            optimizer.step()\n" for i in range(7))
    lines, refused = gate(TURNS.replace(turns, many))
    assert lines == []
    assert refused == {
        "too-many-paths": "too many different ways lead here to tell which optimizer stepped; count right behind each step"
    }


def test_turns_whose_guard_asks_an_accelerator_from_elsewhere_keep_their_flag():
    text = TURNS.replace("model, critic, loader", "model, critic, loader, given").replace(
        "if accelerator.", "if given."
    )
    lines, refused = gate(text)
    assert lines[-1] == "if given.sync_gradients and not step_was_skipped:"
    assert refused == {}
