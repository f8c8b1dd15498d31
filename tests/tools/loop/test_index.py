"""Which classes inherit from which, and which of them gives an attribute its value."""

import pytest

from tools.loop.script import Script
from tools.source import Source

TEXT = """\
class Root:
    def __init__(self):
        self.step = 0


class Middle(Root):
    def __init__(self):
        super().__init__()
        self.optimizer = accelerator.prepare(optimizer)


class Trainer(Mixin, Middle, torch.nn.Module):
    def train(self):
        self.optimizer.step()
        self.step += 1
        self.seen += 1


class Beside(Root):
    def count(self):
        self.seen = 0
"""


@pytest.fixture(scope="module")
def script():
    return Script(Source(TEXT))


@pytest.mark.parametrize(
    ("name", "lineage"),
    [
        ("Root", ["Root"]),
        ("Middle", ["Middle", "Root"]),
        ("Trainer", ["Trainer", "Middle", "Root"]),
        ("Beside", ["Beside", "Root"]),
    ],
)
def test_a_class_inherits_from_those_of_its_file(script, name, lineage):
    assert [item.name for item in script.lineage(script.module.classes[name])] == lineage


def test_a_class_that_inherits_from_itself_ends():
    script = Script(Source("class A(B): pass\nclass B(A): pass\n"))
    assert [item.name for item in script.lineage(script.module.classes["A"])] == ["A", "B"]


@pytest.mark.parametrize(
    ("where", "name", "home"),
    [
        ("train", "self.step", "Root"),
        ("train", "self.optimizer", "Middle"),
        ("train", "self.seen", "Trainer"),
        ("count", "self.seen", "Beside"),
        ("train", "self.nothing", "Trainer"),
    ],
)
def test_an_attribute_belongs_to_the_class_that_gives_it_its_value(script, where, name, home):
    scope = next(item for item in script.scopes if item.name == where)
    assert script.home(scope, name).name == home


def test_what_an_heir_counts_is_bound_where_the_attribute_is(script):
    root = script.module.classes["Root"]
    assert [item.statement.lineno for item in root.bindings["self.step"]] == [3, 15]
    assert "self.step" not in script.module.classes["Trainer"].bindings
