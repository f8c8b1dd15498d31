"""What the objects of a script are, under whatever name, and who prepared them."""

import ast

import pytest

from tools.loop.objects import Objects, argument_of
from tools.loop.script import Script
from tools.source import Source


def read(text):
    return Objects(Script(Source(text)))


def scope(objects, name=""):
    return next(item for item in objects.script.scopes if item.name == name)


ALIASES = """\
class Trainer:
    def __init__(self, accelerator, optim):
        self.accelerator = accelerator
        self.optim = optim
        self.own = self
        self.first = self.second
        self.twice = accelerator
        self.twice = optim
        optim.step()

    def train(self, loader):
        acc = self.accelerator
        again = acc
        for item in loader:
            item.step()
        made = build(acc)
        pair, = acc
        again.backward(1)


def helper(opt, other):
    opt.step()


def main():
    accelerator = Accelerator()
    optimizer = SGD()
    trainer = Trainer(accelerator, optim=optimizer)
    helper(optimizer, 1)
    helper(optimizer, optimizer)
"""


@pytest.mark.parametrize(
    ("where", "name", "home", "key"),
    [
        ("train", "self.accelerator", "main", "accelerator"),
        ("train", "acc", "main", "accelerator"),
        ("train", "again", "main", "accelerator"),
        ("train", "self.optim", "main", "optimizer"),
        ("helper", "opt", "main", "optimizer"),
        ("helper", "opt.state", "main", "optimizer.state"),
        ("train", "again.state.x", "main", "accelerator.state.x"),
        ("helper", "other", "helper", "other"),
        ("train", "item", "train", "item"),
        ("train", "made", "train", "made"),
        ("train", "made.x", "train", "made.x"),
        ("train", "pair", "train", "pair"),
        ("train", "loader", "train", "loader"),
        ("train", "unknown", "train", "unknown"),
        ("train", "self.own", "__init__", "self"),
        ("train", "self.first", "Trainer", "self.second"),
        ("train", "self.twice", "Trainer", "self.twice"),
    ],
)
def test_an_object_is_the_same_under_every_name(where, name, home, key):
    objects = read(ALIASES)
    found = objects.identity(scope(objects, where), name)
    assert (found.scope.name, found.key) == (home, key)
    assert objects.identity(scope(objects, where), name) is found


def test_names_of_two_functions_are_two_objects():
    objects = read("def f():\n    opt = SGD()\n    opt.step()\n\n\ndef g():\n    opt = SGD()\n    opt.step()\n")
    first, second = (objects.identity(scope(objects, name), "opt") for name in "fg")
    assert first.key == second.key
    assert first != second


def test_aliases_are_followed_but_not_for_ever():
    text = "a0 = SGD()\n" + "".join(f"a{i + 1} = a{i}\n" for i in range(9)) + "b = c\nc = b\nd = d\n"
    objects = read(text)
    assert objects.identity(objects.script.module, "a9").key == "a3"
    assert objects.identity(objects.script.module, "a6").key == "a0"
    assert objects.identity(objects.script.module, "d").key == "d"
    assert objects.identity(objects.script.module, "b").key in ("b", "c")


@pytest.mark.parametrize(
    ("text", "where", "name"),
    [
        ("x = x.next\n", "", "x.inner"),
        ("a = b.x\nb = a.y\n", "", "b.inner"),
        ("def f(node):\n    node.step()\n    f(node.next)\n", "f", "node.inner"),
    ],
)
def test_names_that_go_in_circles_come_to_an_end(text, where, name):
    objects = read(text)
    found = objects.identity(scope(objects, where), name)
    assert found.key.endswith(".inner")


def test_an_argument_that_differs_from_call_to_call_is_the_parameter_itself():
    objects = read("def f(opt):\n    opt.step()\n\n\na = SGD()\nb = SGD()\nf(a)\nf(b)\n")
    found = objects.identity(scope(objects, "f"), "opt")
    assert (found.scope.name, found.key) == ("f", "opt")


@pytest.mark.parametrize(
    ("value", "name", "kind"),
    [
        ("Accelerator()", "x", "accelerator"),
        ("SGD()", "x", "optimizer"),
        ("get_scheduler()", "x", "scheduler"),
        ("EMAModel()", "x", "ema"),
        ("tqdm()", "x", "bar"),
        ("torch.amp.GradScaler()", "x", "scaler"),
        ("Other()", "x", ""),
        ("Other()", "accelerator", "accelerator"),
        ("Other()", "optimizer", "optimizer"),
        ("Other()", "lr_scheduler", "scheduler"),
        ("Other()", "ema", "ema"),
        ("Other()", "progress_bar", "bar"),
        ("Other()", "scaler", "scaler"),
        ("Other()", "engine", "engine"),
        ("Other()", "my_engine", "engine"),
        ("Other()", "engine_x", ""),
        ("Other()", "scalers", ""),
        ("get_scheduler()", "optimizer", "scheduler"),
        ("acc.prepare(SGD())", "x", "optimizer"),
        ("acc.prepare_scheduler(build_lr_sched())", "x", "scheduler"),
        ("acc.prepare(SGD(), Other())", "x", ""),
        ("acc.other(SGD())", "x", ""),
        ("prepare(SGD())", "x", ""),
    ],
)
def test_a_kind_is_told_by_how_a_thing_is_made_and_then_by_its_name(value, name, kind):
    objects = read(f"{name} = {value}\n")
    assert objects.kind(objects.script.module, name) == kind


@pytest.mark.parametrize(
    ("text", "name", "kind"),
    [
        ("engine, optimizer, _, _ = deepspeed.initialize(model)", "engine", "engine"),
        ("thing, optimizer, _, _ = deepspeed.initialize(model)", "thing", "engine"),
        ("thing, optimizer, _, _ = deepspeed.initialize(model)", "optimizer", "optimizer"),
        ("thing, other = colossal.initialize(model)", "thing", ""),
        ("thing, other = initialize(model)", "thing", ""),
        ("thing, other = deepspeed.build(model)", "thing", ""),
        ("thing, other = SGD()", "thing", ""),
        ("for thing in SGD(): pass", "thing", ""),
        ("a = SGD()\nthing = a", "thing", "optimizer"),
        ("thing = other\nthing = SGD()", "thing", "optimizer"),
        ("opt_scheduler = 1", "opt_scheduler", "scheduler"),
        ("if (thing := SGD()): pass", "thing", "optimizer"),
        ("optimizers = build()", "optimizers['model']", "optimizer"),
        ("self.schedulers = build()", "self.schedulers['model']", "scheduler"),
        ("optimizers = build()", "optimizers['first']['model']", "optimizer"),
        ("things = build()", "things['model']", ""),
        ("other = thing = SGD()", "thing", "optimizer"),
        ("other = thing = SGD()", "other", "optimizer"),
        ("while (thing := SGD()): pass", "thing", "optimizer"),
        ("thing = thing.prepare(thing)", "thing", ""),
        ("base = Config()\nshort = base\nshort.thing = SGD()", "short.thing", "optimizer"),
    ],
)
def test_a_kind_is_told_through_unpacking_and_aliases(text, name, kind):
    objects = read(f"{text}\n")
    assert objects.kind(objects.script.module, name) == kind


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("thing.zero_grad()\nthing.step()", "optimizer"),
        ("other.thing.zero_grad()\nother.thing.step()", ""),
        ("thing.zero_grad()", ""),
        ("thing.clear()\nthing.step()", ""),
        ("zero_grad(thing)\nthing.step()", ""),
        ("make().zero_grad()\nthing.step()", ""),
    ],
)
def test_what_has_gradients_cleared_and_steps_is_an_optimizer(text, answer):
    objects = read(f"thing = build()\n{text}\n")
    assert objects.kind(objects.script.module, "thing") == answer


@pytest.mark.parametrize("quote", ["'", '"'])
def test_an_item_of_a_dictionary_can_be_one(quote):
    objects = read(f"d = {{}}\nd[{quote}thing{quote}].zero_grad()\nd[{quote}thing{quote}].step()\n")
    assert objects.kind(objects.script.module, "d['thing']") == "optimizer"


LOOKALIKES = """\
class Plain: pass
class Object(object): pass
class Own(Plain): pass
class Known(Accelerator): pass
class Elsewhere(other.Base): pass
class Computed(bases()): pass
class Loop(Loop): pass
"""


@pytest.mark.parametrize(
    ("value", "answer"),
    [
        ("Plain()", True),
        ("Object()", True),
        ("Own()", True),
        ("Fabric()", True),
        ("lightning.Fabric()", True),
        ("Known()", False),
        ("Elsewhere()", False),
        ("Computed()", False),
        ("Loop()", False),
        ("Unknown()", False),
        ("Accelerator()", False),
        ("Plain", False),
        ("make()()", False),
    ],
)
def test_a_class_of_this_file_that_is_no_accelerator_only_looks_like_one(value, answer):
    objects = read(f"{LOOKALIKES}accelerator = {value}\n")
    assert objects.is_lookalike(objects.script.module, "accelerator") is answer
    assert objects.kind(objects.script.module, "accelerator") == ("" if answer else "accelerator")


def test_a_lookalike_that_may_be_another_thing_is_none():
    objects = read(f"{LOOKALIKES}accelerator = Plain()\naccelerator = Accelerator()\n")
    assert not objects.is_lookalike(objects.script.module, "accelerator")
    objects = read(f"{LOOKALIKES}accelerator = Plain()\naccelerator = given\n")
    assert not objects.is_lookalike(objects.script.module, "accelerator")
    assert read(f"{LOOKALIKES}optimizer = Plain()\n").kind(read("x = 1").script.module, "optimizer") == "optimizer"


PREPARE = "acc = Accelerator()\nopt = SGD()\nother = SGD()\nsched = get_scheduler()\n"


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("opt = acc.prepare(opt)", True),
        ("model, opt = acc.prepare(model, opt)", True),
        ("[model, opt] = acc.prepare(model, opt)", True),
        ("opt, x = acc.prepare(opt), 1", True),
        ("x, opt = 1, acc.prepare(opt)", True),
        ("x, opt = sched.prepare(x), acc.prepare(opt)", True),
        ("opt = thing.prepare(opt)", True),
        ("opt: Optimizer = acc.prepare(opt)", True),
        ("opt = acc.prepare_optimizer(opt)", True),
        ("model, opt = map(acc.prepare, (model, opt))", True),
        ("model, opt = [acc.prepare(x) for x in (model, opt)]", True),
        ("model, opt = list(map(acc.prepare, (model, opt)))", True),
        ("opt = wrap(acc.prepare(opt))", True),
        ("other = acc.prepare(other)", False),
        ("acc.prepare(opt)", False),
        ("opt = acc.prepare_model(opt)", None),
        ("opt = prepare(opt)", False),
        ("opt = sched.prepare(opt)", False),
        ("opt = acc.register(opt)", None),
        ("things = acc.prepare(*things)", None),
        ("things = acc.prepare(model, opt)", None),
        ("opt = things[0]", None),
        ("opt: Optimizer", None),
        ("opt = build(acc)", None),
        ("opt = build(acc).opt", None),
        ("opt = build(1).opt", False),
        ("opt = acc", False),
        ("opt = build(1)", False),
        ("opt = SGD(acc)", False),
        ("opt = get_scheduler(acc)", False),
        ("for opt in things: pass", None),
        ("opt, x = given", None),
        ("opt = other", False),
    ],
)
def test_whether_an_optimizer_is_prepared_and_where_the_file_cannot_tell(text, answer):
    objects = read(f"{PREPARE}{text}\n")
    identity = objects.identity(objects.script.module, "opt")
    found = [item for item in objects.preparations if item.prepared.key == "opt"]
    assert bool(found) is (answer is True)
    assert objects.is_prepared(identity) is answer


def test_what_is_returned_from_prepare_is_out_of_sight():
    text = "def f(acc, opt):\n    return acc.prepare(opt)\n\n\nopt = SGD()\nacc = Accelerator()\n"
    assert read(text).is_opaque
    assert read(text.replace("return", "yield")).is_opaque is False  # a yield is an expression
    assert not read(text.replace("return", "x =")).is_opaque


def test_parameters_come_from_elsewhere():
    objects = read("def f(opt):\n    a = opt\n    opt.step()\n    b = opt.inner\n")
    function = scope(objects, "f")
    for name in ("opt", "a", "b"):
        assert objects.is_prepared(objects.identity(function, name)) is None


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("a, b = acc.prepare(a, b)\nopt = a if x else b", True),
        ("a = acc.prepare(a)\nopt = a if x else b", False),
        ("a = acc.prepare(a)\nopt = a if x else build()", None),
        ("a, b = acc.prepare(a, b)\nopt, other = (a, b) if x else (b, a)", True),
        ("a = acc.prepare(a)\nopt, other = (a, b) if x else (b, a)", False),
    ],
)
def test_a_choice_is_prepared_where_both_of_its_sides_are(text, answer):
    objects = read(f"acc = Accelerator()\na = SGD()\nb = SGD()\n{text}\n")
    assert objects.is_prepared(objects.identity(objects.script.module, "opt")) is answer


def test_an_optimizer_that_may_be_the_given_one_is_out_of_sight():
    objects = read("def f(given):\n    opt = SGD()\n    if given:\n        opt = given\n    opt.step()\n")
    assert objects.is_prepared(objects.identity(scope(objects, "f"), "opt")) is None


def optimizers(text):
    objects = read(f"acc = Accelerator()\n{text}\n")
    accelerator = objects.identity(objects.script.module, "acc")
    return [item.key for item in objects.optimizers(accelerator)]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a_opt, b_opt = acc.prepare(SGD(), SGD())", ["a_opt", "b_opt"]),
        ("model, opt = acc.prepare(model, SGD())", ["opt"]),
        ("opt = acc.prepare(SGD())\nopt = acc.prepare(SGD())", ["opt", "opt"]),
        ("if x:\n    opt = acc.prepare(SGD())\nelse:\n    opt = acc.prepare(SGD())", ["opt"]),
        ("if x:\n    opt = acc.prepare(SGD())\nopt = acc.prepare(SGD())", ["opt", "opt"]),
        ("for x in y:\n    opt = acc.prepare(SGD())", ["opt", "opt"]),
        ("optimizers = [acc.prepare(x) for x in y]", ["optimizers", "optimizers"]),
        ("other = Accelerator()\nopt = other.prepare(SGD())", []),
        ("try:\n    opt = acc.prepare(SGD())\nexcept E:\n    opt = acc.prepare(SGD())", ["opt", "opt"]),
        (
            "if x:\n    if y:\n        opt = acc.prepare(SGD())\nelse:\n    with z:\n        opt = acc.prepare(SGD())",
            ["opt"],
        ),
    ],
)
def test_every_optimizer_of_an_accelerator(text, found):
    assert optimizers(text) == found


FUNCTION = "def f({}):\n    opt.step()\n"


@pytest.mark.parametrize(
    ("parameters", "call", "value"),
    [
        ("a, opt", "f(1, x)", "x"),
        ("a, opt", "f(1, opt=x)", "x"),
        ("a, opt", "f(opt=x, a=1)", "x"),
        ("self, opt", "f(x)", "x"),
        ("cls, opt", "f(x)", "x"),
        ("a, opt", "f(1)", None),
        ("a, opt", "f(*b)", None),
        ("a, opt", "f(*b, x)", None),
        ("opt, a", "f(x, *b)", "x"),
        ("a, *, opt", "f(1, opt=x)", "x"),
        ("a, b", "f(1, x)", None),
        ("a, opt", "f(**b)", None),
    ],
)
def test_the_argument_for_a_parameter(parameters, call, value):
    objects = read(FUNCTION.format(parameters))
    found = argument_of(scope(objects, "f"), ast.parse(call, mode="eval").body, "opt")
    assert (found and ast.unparse(found)) == value
