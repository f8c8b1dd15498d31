"""Which clauses of a test ask for a boundary and which for a skipped update."""

import ast

import pytest

from tools.loop.clauses import Test as Read
from tools.options import Options
from tools.source import Source
from tools.work import Work

HEAD = """\
from accelerate import Accelerator

accelerator = Accelerator()
optimizer = accelerator.prepare(SGD())
state = accelerator.gradient_state
own_state = GradientState()
moved = elsewhere.gradient_state
"""


def read(test, head=""):
    """The clauses of a test that stands at the end of a file: kind, positive, owner; and whether one is enough."""
    work = Work(Source(f"{HEAD}{head}if {test}:\n    pass\n"), Options())
    node = work.source.tree.body[-1]
    return work.clauses.read(node.test, work.script.module, node), work


def shown(found: Read):
    clauses = [(item.kind, item.positive, item.owner) for item in found.clauses]
    return (*clauses, "any") if found.is_any else tuple(clauses)


SYNC, SKIP, OWN = ("sync", True, "accelerator"), ("skip", True, "accelerator"), ("skip", True, "optimizer")
MICRO, APPLIED, OWN_APPLIED = (
    ("sync", False, "accelerator"),
    ("skip", False, "accelerator"),
    ("skip", False, "optimizer"),
)
OTHER, NOT_OTHER = ("other", True, None), ("other", False, None)


@pytest.mark.parametrize(
    ("test", "wanted"),
    [
        ("accelerator.sync_gradients", (SYNC,)),
        ("not accelerator.sync_gradients", (MICRO,)),
        ("not not accelerator.sync_gradients", (SYNC,)),
        ("accelerator.optimizer_step_was_skipped", (SKIP,)),
        ("not accelerator.optimizer_step_was_skipped", (APPLIED,)),
        ("optimizer.step_was_skipped", (OWN,)),
        ("not optimizer.step_was_skipped", (OWN_APPLIED,)),
        ("x", (OTHER,)),
        ("not x", (NOT_OTHER,)),
        ("accelerator.is_main_process", (OTHER,)),
        ("accelerator.sync_gradients and x", (SYNC, OTHER)),
        ("not accelerator.sync_gradients or x", (MICRO, OTHER, "any")),
        ("not (accelerator.sync_gradients and x)", (MICRO, NOT_OTHER, "any")),
        ("not (not accelerator.sync_gradients or x)", (SYNC, NOT_OTHER)),
        ("accelerator.sync_gradients and (x and y)", (SYNC, OTHER, OTHER)),
        ("accelerator.sync_gradients and (x or y)", (SYNC, OTHER)),
        ("x and (accelerator.sync_gradients or y)", (OTHER, ("mixed", True, None))),
        ("x or (accelerator.sync_gradients and y)", (OTHER, ("mixed", True, None), "any")),
        ("not (x or (accelerator.sync_gradients and y))", (NOT_OTHER, ("mixed", False, None))),
        ("x and not (accelerator.sync_gradients and accelerator.optimizer_step_was_skipped)", (OTHER, APPLIED)),
        ("x or not (y and accelerator.optimizer_step_was_skipped)", (OTHER, NOT_OTHER, APPLIED, "any")),
        ("accelerator.sync_gradients is True", (SYNC,)),
        ("accelerator.sync_gradients == True", (SYNC,)),
        ("accelerator.sync_gradients is False", (MICRO,)),
        ("not accelerator.sync_gradients == False", (SYNC,)),
        ("accelerator.sync_gradients is not True", (OTHER,)),
        ("accelerator.sync_gradients == 1", (OTHER,)),
        ("accelerator.sync_gradients is True is True", (OTHER,)),
        ("accelerator.sync_gradients == x", (OTHER,)),
        ("x is False", (OTHER,)),
        ("not (z := accelerator.sync_gradients)", (MICRO,)),
        ("x and not (accelerator.optimizer_step_was_skipped and accelerator.sync_gradients)", (OTHER, APPLIED)),
        ("all([accelerator.sync_gradients, x])", (SYNC, OTHER)),
        ("any((accelerator.sync_gradients, x))", (SYNC, OTHER, "any")),
        ("all([accelerator.sync_gradients])", (SYNC,)),
        ("any([accelerator.sync_gradients])", (SYNC,)),
        ("not any([accelerator.sync_gradients])", (MICRO,)),
        ("not any((accelerator.sync_gradients, x))", (MICRO, NOT_OTHER)),
        ("all([])", (OTHER,)),
        ("all(accelerator.sync_gradients)", (OTHER,)),
        ("all(accelerator.sync_gradients for x in y)", (OTHER,)),
        ("all([accelerator.sync_gradients], x)", (OTHER,)),
        ("all([accelerator.sync_gradients], key=x)", (OTHER,)),
        ("all([*x, accelerator.sync_gradients])", (OTHER,)),
        ("most([accelerator.sync_gradients])", (OTHER,)),
        ("make(x)([accelerator.sync_gradients])", (OTHER,)),
        ("x.all([accelerator.sync_gradients])", (OTHER,)),
        ("x is True", (OTHER,)),
        ("bool(accelerator.sync_gradients)", (SYNC,)),
        ("bool(x)", (OTHER,)),
        ("bool(accelerator.sync_gradients, x)", (OTHER,)),
        ("bool()", (OTHER,)),
        ("int(accelerator.sync_gradients)", (OTHER,)),
        ('getattr(accelerator, "sync_gradients")', (SYNC,)),
        ('getattr(accelerator, "sync_gradients", True)', (SYNC,)),
        ('getattr(accelerator, name, "sync_gradients")', (OTHER,)),
        ("getattr(accelerator, 1)", (OTHER,)),
        ('getattr(accelerator, "sync_gradients", True, 1)', (OTHER,)),
        ('fetch(accelerator, "sync_gradients")', (OTHER,)),
        ("accelerator.gradient_state.sync_gradients", (SYNC,)),
        ("state.sync_gradients", (SYNC,)),
        ("own_state.sync_gradients", (SYNC,)),
        ("gradient_state.sync_gradients", (SYNC,)),
        ("moved.sync_gradients", (("sync", True, "elsewhere"),)),
        ("moved.gradient_state.sync_gradients", (("sync", True, "moved"),)),
        ("f().sync_gradients", (("sync", True, None),)),
        ("trainer.accelerator.sync_gradients", (("sync", True, "trainer.accelerator"),)),
        ("(z := accelerator.sync_gradients)", (SYNC,)),
        ("(z := accelerator.sync_gradients) and x", (SYNC, OTHER)),
        ("accelerator.sync_gradients if x else y", (OTHER,)),
    ],
)
def test_a_test_is_read_clause_by_clause(test, wanted):
    assert shown(read(test)[0]) == wanted


@pytest.mark.parametrize(
    "clause",
    [
        "accelerator.sync_gradients",
        "bool(accelerator.sync_gradients)",
        "accelerator.sync_gradients is True",
        "(z := accelerator.sync_gradients)",
        "all([accelerator.sync_gradients, y])",
        'getattr(accelerator, "sync_gradients")',
    ],
)
def test_a_clause_is_the_whole_of_what_the_test_says(clause):
    found, work = read(f"x and {clause}")
    wanted = clause.strip("()") if clause.startswith("(") else clause
    assert [work.source.segment(item.node) for item in found.clauses if item.kind == "sync"] == [wanted]


def test_a_clause_knows_whose_flag_it_is_and_its_text():
    found, work = read("x and not (accelerator.sync_gradients)")
    clause = found.clauses[1]
    assert work.source.segment(clause.node) == "accelerator.sync_gradients"
    assert clause.owner == "accelerator"
    assert read("optimizer.step_was_skipped")[0].clauses[0].owner == "optimizer"


@pytest.mark.parametrize(
    ("head", "test", "wanted"),
    [
        ("s = accelerator.sync_gradients\n", "s", (SYNC,)),
        ("s = accelerator.sync_gradients\n", "not s", (MICRO,)),
        ("s = accelerator.sync_gradients\nt = not s\n", "t", (MICRO,)),
        ("s, t = accelerator.sync_gradients, x\n", "s and t", (SYNC, OTHER)),
        ("s: bool = accelerator.sync_gradients\n", "s", (SYNC,)),
        ("self.s = accelerator.sync_gradients\n", "self.s", (SYNC,)),
        ("s = accelerator.sync_gradients and not optimizer.step_was_skipped\n", "s and x", (SYNC, OWN_APPLIED, OTHER)),
        ("s = accelerator.sync_gradients or x\n", "s", (SYNC, OTHER, "any")),
        ("if (s := accelerator.sync_gradients): pass\n", "s", (SYNC,)),
        ("s = x\n", "s", (OTHER,)),
        ("s = accelerator.sync_gradients\ns = x\n", "s", (OTHER,)),
        ("s = x\ns = accelerator.sync_gradients\n", "s", (SYNC,)),
        ("s = accelerator.sync_gradients\ns = accelerator.optimizer_step_was_skipped\n", "s", (SKIP,)),
        ("s = accelerator.sync_gradients\nfor s in x: pass\n", "s", (OTHER,)),
        ("s = accelerator.sync_gradients\ndel t\n", "s", (SYNC,)),
        ("s = accelerator.sync_gradients\ns = s and x\n", "s", (SYNC, OTHER)),
        ("s = lambda: accelerator.sync_gradients\n", "s()", (SYNC,)),
        ("a = x\na = accelerator.sync_gradients\ns = lambda: a and accelerator.sync_gradients\n", "s()", (SYNC, SYNC)),
        ("a = accelerator.sync_gradients\nb = a\n", "b", (SYNC,)),
        ("a = accelerator.sync_gradients\nb = a\nc = b\n", "c", (OTHER,)),
    ],
)
def test_aliases_are_read_where_they_have_their_last_value(head, test, wanted):
    assert shown(read(test, head)[0]) == wanted


def test_an_alias_keeps_the_statement_that_gave_it_its_value():
    found, work = read("s and x", "s = accelerator.sync_gradients\n")
    assert work.source.segment(found.clauses[0].alias) == "s = accelerator.sync_gradients"
    assert work.source.segment(found.clauses[0].node) == "s"
    assert found.clauses[1].alias is None


def test_a_name_that_gets_its_value_below_is_no_alias_yet():
    work = Work(Source(HEAD + "if s:\n    pass\ns = accelerator.sync_gradients\n"), Options())
    node = work.source.tree.body[-2]
    assert not work.clauses.read(node.test, work.script.module, node).is_flagged


@pytest.mark.parametrize(
    ("test", "traits"),
    [
        ("accelerator.sync_gradients", "needs_sync"),
        ("accelerator.sync_gradients and x", "needs_sync"),
        ("accelerator.sync_gradients or x", ""),
        ("not (accelerator.sync_gradients and x)", "holds_without_sync"),
        ("not accelerator.sync_gradients", "holds_without_sync"),
        ("not accelerator.sync_gradients and x", ""),
        ("accelerator.optimizer_step_was_skipped", "holds_on_skip shuts_applied_out"),
        ("accelerator.optimizer_step_was_skipped or x", "holds_on_skip"),
        ("accelerator.optimizer_step_was_skipped and x", "shuts_applied_out"),
        ("not accelerator.optimizer_step_was_skipped", "needs_applied lets_all_applied_in"),
        ("not accelerator.optimizer_step_was_skipped and x", "needs_applied"),
        ("not accelerator.optimizer_step_was_skipped or x", ""),
        (
            "accelerator.sync_gradients and not accelerator.optimizer_step_was_skipped",
            "needs_sync needs_applied lets_all_applied_in",
        ),
        (
            "not (accelerator.sync_gradients and accelerator.optimizer_step_was_skipped)",
            "holds_without_sync spares_only_skips lets_all_applied_in",
        ),
        ("not (accelerator.optimizer_step_was_skipped and x)", ""),
        ("not (accelerator.optimizer_step_was_skipped and optimizer.step_was_skipped)", ""),
        ("x or accelerator.sync_gradients or optimizer.step_was_skipped", "holds_on_skip"),
        (
            "not accelerator.sync_gradients or optimizer.step_was_skipped",
            "holds_without_sync holds_on_skip shuts_applied_out",
        ),
        (
            "optimizer.step_was_skipped or not accelerator.sync_gradients",
            "holds_without_sync holds_on_skip shuts_applied_out",
        ),
        ("accelerator.optimizer_step_was_skipped or accelerator.sync_gradients", "holds_on_skip"),
        (
            "not accelerator.optimizer_step_was_skipped or not accelerator.sync_gradients",
            "holds_without_sync spares_only_skips lets_all_applied_in",
        ),
        ("accelerator.optimizer_step_was_skipped and accelerator.sync_gradients", "needs_sync shuts_applied_out"),
        ("accelerator.optimizer_step_was_skipped and not accelerator.sync_gradients", "shuts_applied_out"),
        ("not accelerator.optimizer_step_was_skipped and not accelerator.sync_gradients", "needs_applied"),
        (
            "accelerator.sync_gradients and not accelerator.optimizer_step_was_skipped and x",
            "needs_sync needs_applied",
        ),
        ("all([accelerator.sync_gradients, x])", "needs_sync"),
        (
            "any((not accelerator.sync_gradients, optimizer.step_was_skipped))",
            "holds_without_sync holds_on_skip shuts_applied_out",
        ),
        (
            "not all([accelerator.sync_gradients, accelerator.optimizer_step_was_skipped])",
            "holds_without_sync spares_only_skips lets_all_applied_in",
        ),
    ],
)
def test_what_a_test_lets_through(test, traits):
    found = read(test)[0]
    words = ("needs_sync", "needs_applied", "holds_without_sync", "holds_on_skip", "spares_only_skips")
    words = (*words, "shuts_applied_out", "lets_all_applied_in")
    assert [word for word in words if getattr(found, word)] == traits.split()
    assert found.is_flagged
    assert not read("x")[0].is_flagged


ASKERS = """\
class Other:
    @property
    def ready(self): return self.accelerator.sync_gradients


class Trainer:
    def __init__(self):
        self.accelerator = Accelerator()

    @property
    def ready(self):
        '''Whether it is.'''
        return self.accelerator.sync_gradients

    @property
    def more(self): return self.accelerator.sync_gradients and self.x

    def whether(self): return not self.accelerator.sync_gradients

    def told(self, x): return self.accelerator.sync_gradients

    def does(self):
        self.x = 1
        return self.accelerator.sync_gradients

    def none(self): return

    def run(self, trainer):
        at_boundary = lambda: self.accelerator.sync_gradients
        self.later = lambda: self.accelerator.sync_gradients
        for batch in self.loader:
            if {}:
                pass


def outside(trainer):
    optimizer.step()
    if {}:
        pass


def ask(): return accelerator.sync_gradients
"""


def if_in(work, function):
    tests = [node for node in work.script.places if isinstance(node, ast.If)]
    return next(node for node in tests if work.script.places[node].scope.name == function)


@pytest.mark.parametrize(
    ("test", "answer"),
    [
        ("self.ready", (("sync", True, "self.accelerator"),)),
        ("not self.ready", (("sync", False, "self.accelerator"),)),
        ("self.whether()", (("sync", False, "self.accelerator"),)),
        ("at_boundary()", (("sync", True, "self.accelerator"),)),
        ("ask()", (("sync", True, "accelerator"),)),
        ("self.more", (OTHER,)),
        ("self.ready()", (OTHER,)),
        ("self.whether", (OTHER,)),
        ("self.whether(1)", (OTHER,)),
        ("self.whether(x=1)", (OTHER,)),
        ("self.told(1)", (OTHER,)),
        ("self.does()", (OTHER,)),
        ("self.none()", (OTHER,)),
        ("self.later()", (OTHER,)),
        ("self.inner.ready", (OTHER,)),
        ("trainer.ready", (OTHER,)),
        ("trainer.whether()", (OTHER,)),
        ("ready", (OTHER,)),
        ("at_boundary", (OTHER,)),
        ("ask", (OTHER,)),
    ],
)
def test_functions_properties_and_lambdas_that_only_ask_a_flag(test, answer):
    work = Work(Source(HEAD + ASKERS.replace("{}", test)), Options())
    inside = if_in(work, "run")
    found = work.clauses.read(inside.test, work.script.places[inside].scope, inside)
    assert shown(found) == answer
    if found.is_flagged:
        assert work.source.segment(found.clauses[0].node) == test.removeprefix("not ")


@pytest.mark.parametrize("test", ["self.ready", "self.whether()", "at_boundary()"])
def test_outside_their_class_they_ask_nothing(test):
    work = Work(Source(HEAD + ASKERS.replace("{}", test)), Options())
    node = if_in(work, "outside")
    assert not work.clauses.read(node.test, work.script.places[node].scope, node).is_flagged


def test_lines_without_a_flag_or_an_alias_are_plain():
    work = read(
        "x", "ready = accelerator.sync_gradients\nif y: pass\nif ready: pass\nif (\n    z\n    or ready\n): pass\n"
    )[1]
    tests = [node for node in work.source.tree.body if isinstance(node, ast.If)]
    assert [work.clauses.is_plain(node, node.test) for node in tests] == [True, False, False, True]
    assert work.clauses.alias_names() == {"ready"}
    assert [word.pattern[:4] for word in work.clauses.words] == ["sync", "step", "read"]


TWO = """\
first = Accelerator()
second = Accelerator()
state = GradientState()


def main():
    inner = Accelerator()
    if state.sync_gradients: pass


class Trainer:
    def __init__(self):
        self.accelerator = Accelerator()

    def run(self):
        if GradientState().sync_gradients: pass
        if self.gradient_state.sync_gradients: pass


if state.sync_gradients: pass
"""


def test_a_state_of_its_own_stands_for_the_one_accelerator_in_reach():
    work = Work(Source(TWO), Options())
    tests = [node for node in ast.walk(work.source.tree) if isinstance(node, ast.If)]
    found = {
        (work.script.places[node].scope.name, ast.unparse(node.test)): work.clauses.read(
            node.test, work.script.places[node].scope, node
        )
        .clauses[0]
        .owner
        for node in tests
    }
    assert found == {
        ("main", "state.sync_gradients"): "inner",
        ("run", "GradientState().sync_gradients"): None,
        ("run", "self.gradient_state.sync_gradients"): "self",
        ("", "state.sync_gradients"): None,
    }


def test_without_one_of_its_own_a_method_has_that_of_its_class():
    text = TWO.replace("first = Accelerator()\nsecond = Accelerator()\n", "").replace(
        "GradientState().sync", "moved.sync"
    )
    work = Work(Source(text.replace("state = ", "moved = ", 1)), Options())
    run = next(scope for scope in work.script.scopes if scope.name == "run")
    assert work.clauses.only_accelerator(run) == "self.accelerator"
    assert work.clauses.accelerator_behind(run, "moved") == "self.accelerator"


def test_a_property_is_told_from_a_method_of_the_same_name():
    other = "class Other:\n    def ready(self): return self.accelerator.sync_gradients\n\n\n"
    work = Work(Source(HEAD + other + ASKERS.replace("{}", "self.ready")), Options())
    inside = if_in(work, "run")
    found = work.clauses.read(inside.test, work.script.places[inside].scope, inside)
    assert shown(found) == (("sync", True, "self.accelerator"),)
