"""What statements add to which key."""

import ast

import pytest

from tools.loop.counters import counter_of, drawn, growth_of, returned
from tools.loop.script import Script
from tools.source import Source


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("n += 1", "n"),
        ("n += 2", "n"),
        ("self.n += 1", "self.n"),
        ("n['a'] += 1", "n['a']"),
        ("n = n + 1", "n"),
        ("n = 1 + n", "n"),
        ("n.add_(1)", "n"),
        ("n -= 1", None),
        ("n *= 2", None),
        ("n += 1.0", None),
        ("n += True", None),
        ("n += x", None),
        ("n = n - 1", None),
        ("n = n + x", None),
        ("n = m + 1", None),
        ("m = n = n + 1", None),
        ("n = n", None),
        ("n[i] += 1", None),
        ("n.add_(x)", None),
        ("n.add_(1, 2)", None),
        ("n.add(1)", None),
        ("add_(1)", None),
        ("x = n.add_(1)", None),
        ("n: int = 1", None),
        ("total += num_processes", None),
        ("global_step += accelerator.num_processes", "global_step"),
        ("global_step += a + b", None),
        ("global_step += torch.tensor(1)", "global_step"),
        ("global_step += torch.tensor(x)", None),
        ("global_step += torch.tensor(1, 2)", None),
        ("global_step += make(1)", None),
    ],
)
def test_what_counts_up_by_a_constant(text, name):
    assert counter_of(ast.parse(text).body[0]) == name


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("s = replace(s, step=s.step + 1)", "s.step"),
        ("self.s = dataclasses.replace(self.s, step=1 + self.s.step)", "self.s.step"),
        ("s = s._replace(step=s.step + 1)", "s.step"),
        ("s = t = replace(s, step=s.step + 1)", None),
        ("s = replace(s, t)", None),
        ("s = replace(s, **more)", None),
        ("replace(s, step=s.step + 1)", None),
        ("s.update(step=s['step'] + 1)", "s['step']"),
        ("s.update(other, step=s['step'] + 1)", None),
        ("x = s.update(step=s['step'] + 1)", None),
        ("s = replace(s, step=s.step + 1, loss=0)", None),
        ("s = functions[0](s, step=s.step + 1)", None),
    ],
)
def test_what_counts_up_inside_another_object(text, name):
    assert counter_of(ast.parse(text).body[0]) == name


def test_what_grows_among_others_grows_by_no_number():
    name, amount = growth_of(ast.parse("s = replace(s, loss=0, step=s.step + 1)").body[0])
    assert (name, type(amount)) == ("s.step", ast.Call)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("step = next(ticks)", "step"),
        ("step = next(self.ticks)", None),
        ("step = next(ticks, 0)", None),
        ("step = next(other)", None),
        ("step = take(ticks)", None),
        ("step = next(pair)", None),
        ("step = next(twice)", None),
        ("x = next(ticks)", None),
        ("step, rest = next(ticks)", None),
        ("a = step = next(ticks)", None),
        ("step += next(ticks)", None),
    ],
)
def test_the_next_number_of_a_count(text, name):
    given = "ticks = itertools.count()\nother = iter(x)\npair, more = count()\ntwice = count()\ntwice = iter(x)\n"
    script = Script(Source(f"{given}{text}\n"))
    assert drawn(script, script.source.tree.body[-1]) == name


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("step = advance(step)", "step"),
        ("self.step = advance(self.step)", "self.step"),
        ("step = advance(other)", None),
        ("a = step = advance(step)", None),
        ("advance(step)", None),
        ("step = advance()", None),
        ("step = by_hand(step)", None),
        ("step = nothing(step)", None),
        ("step = unknown(step)", None),
    ],
)
def test_the_next_number_by_a_function(text, name):
    given = (
        "def advance(n):\n    show(n)\n    return n + 1\ndef by_hand(n):\n    return n + x\ndef nothing(n): return\n"
    )
    script = Script(Source(f"{given}{text}\n"))
    assert returned(script, script.source.tree.body[-1]) == name
