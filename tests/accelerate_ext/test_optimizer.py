"""The prepared optimizer that counts."""

from __future__ import annotations

import copy
import pickle
import warnings

import accelerate
import pytest
import torch
from accelerate.optimizer import AcceleratedOptimizer

import accelerate_ext
from accelerate_ext.optimizer import CountedOptimizer, count_steps_of, stop_counting_steps_of

COPIES = {
    "pickle": lambda optimizer: pickle.loads(pickle.dumps(optimizer)),
    "deepcopy": copy.deepcopy,
}


@pytest.mark.parametrize("kind", ["adamw", "adamw fused", "sgd", "schedulefree"])
@pytest.mark.parametrize("how", COPIES)
def test_a_copy_has_the_counts_and_counts_for_itself(loop, kind, how):
    record = loop(optimizer=kind, infinite=[1, 3], batches=4).run()
    copied = COPIES[how](record.optimizer)
    assert isinstance(copied, CountedOptimizer)
    assert (copied.attempted_step, copied.applied_step, copied.skipped_steps) == (4, 2, 2)
    assert copied.step_was_skipped
    assert copied.state_dict().keys() == record.optimizer.state_dict().keys()
    parameter = copied.param_groups[0]["params"][0]
    copied.scaler.scale(parameter.sum()).backward()
    copied.step()
    copied.zero_grad()
    assert (copied.applied_step, copied.step_was_skipped) == (3, False)
    copied.scaler.scale(parameter.sum() * float("inf")).backward()
    scale = copied.scaler.get_scale()
    copied.step()
    assert (copied.skipped_steps, copied.step_was_skipped, copied.scaler.get_scale()) == (3, True, scale / 2)
    assert record.optimizer.applied_step == record.accelerator.applied_step == 2


def test_a_copy_can_be_prepared_again(loop):
    record = loop(batches=2, scaler=None).run()
    copied = copy.deepcopy(record.optimizer)
    assert record.accelerator.prepare_optimizer(copied) is copied
    record.accelerator.backward(copied.param_groups[0]["params"][0].sum())
    copied.step()
    assert copied.applied_step == 3
    assert record.accelerator.update_applied


def test_a_copy_has_skipped_nothing_while_it_accumulates(loop):
    copied = copy.deepcopy(loop(infinite=[0], batches=1).run().optimizer)
    assert copied.step_was_skipped
    copied.gradient_state._set_sync_gradients(False)
    copied.step()
    assert not copied.step_was_skipped


@pytest.mark.parametrize("made", ["before", "after"])
@pytest.mark.parametrize("how", COPIES)
def test_a_copy_is_not_tied_to_the_scheduler_of_the_original(how, made):
    accelerator = accelerate.Accelerator(cpu=True)
    model = torch.nn.Linear(1, 1)
    optimizer = accelerator.prepare(torch.optim.SGD(model.parameters()))
    if made == "before":
        torch.optim.lr_scheduler.StepLR(optimizer, 1)
    accelerate_ext.attach(accelerator)
    if made == "after":
        torch.optim.lr_scheduler.StepLR(optimizer, 1)
    copied = COPIES[how](optimizer)
    before = model.weight.detach().clone()
    parameter = copied.param_groups[0]["params"][0]
    start = parameter.detach().clone()
    parameter.sum().backward()
    copied.step()
    assert not torch.equal(parameter, start)
    assert torch.equal(model.weight, before)
    assert (copied.applied_step, optimizer.attempted_step) == (1, 0)


def test_a_pickle_of_an_optimizer_holds_nothing_of_its_accelerator():
    accelerator = accelerate_ext.Accelerator(cpu=True)
    optimizer = accelerator.prepare(torch.optim.SGD(torch.nn.Linear(1, 1).parameters()))
    pickled = pickle.dumps(optimizer)
    assert b"Tally" in pickled
    assert b"BackwardPasses" not in pickled and b"Attempts" not in pickled


class Renamed(AcceleratedOptimizer):
    """Somebody else's prepared optimizer."""

    def where(self) -> str:
        return "here"


@pytest.mark.parametrize("how", COPIES)
def test_a_subclass_of_the_prepared_optimizer_keeps_its_class(how):
    accelerate.Accelerator(cpu=True)
    optimizer = Renamed(torch.optim.SGD(torch.nn.Linear(1, 1).parameters()))
    counted = count_steps_of(optimizer)
    counted.start_counting(None, None)
    assert counted is optimizer
    assert (type(counted).__module__, type(counted).__name__) == (__name__, "CountedRenamed")
    copied = COPIES[how](counted)
    assert isinstance(copied, Renamed) and isinstance(copied, CountedOptimizer)
    assert copied.where() == "here"
    stop_counting_steps_of(counted)
    assert type(optimizer) is Renamed


class Noting(AcceleratedOptimizer):
    """A prepared optimizer that notes the closures it was given."""

    def step(self, closure=None) -> None:
        self.closures = [*getattr(self, "closures", ()), closure]


def test_a_closure_reaches_the_step_of_a_subclass_on_every_micro_batch():
    accelerator = accelerate_ext.Accelerator(cpu=True, gradient_accumulation_steps=2)
    noting = Noting(torch.optim.SGD(torch.nn.Linear(1, 1).parameters()))
    noting._is_accelerate_prepared = True
    optimizer = accelerator.prepare_optimizer(noting)
    closures = [lambda: None, lambda: None]
    for closure in closures:
        with accelerator.accumulate():
            optimizer.step(closure)
    assert optimizer.closures == closures


class Engine(AcceleratedOptimizer):
    """An optimizer whose engine steps by itself, as Megatron-LM's: no closure, and a word of its own about skips."""

    skips = False

    def step(self) -> None:
        pass

    @property
    def step_was_skipped(self) -> bool:
        return self.skips


def test_an_engines_own_word_about_a_skip_is_taken():
    accelerator = accelerate_ext.Accelerator(cpu=True)
    model = torch.nn.Linear(1, 1)
    engine = Engine(torch.optim.SGD(model.parameters()))
    engine._is_accelerate_prepared = True
    optimizer = accelerator.prepare_optimizer(engine)
    outcomes = []
    for skips in (False, True, False):
        optimizer.skips = skips
        with accelerator.attempt() as update:
            accelerator.backward(model(torch.ones(1, 1)).sum())
            optimizer.step()
        outcomes.append((update.outcome, optimizer.step_was_skipped))
    assert outcomes == [("applied", False), ("skipped", True), ("applied", False)]
    assert (accelerator.applied_step, optimizer.applied_step) == (2, 2)


def test_everything_else_about_the_optimizer_is_as_before(loop):
    plain = loop(accelerate.Accelerator, batches=2).run().optimizer
    ours = loop(batches=2).run().optimizer
    assert isinstance(ours, AcceleratedOptimizer)
    assert isinstance(ours, torch.optim.Optimizer)
    assert ours.defaults == plain.defaults
    assert vars(ours.optimizer).keys() == vars(plain.optimizer).keys()


def test_the_scheduler_keeps_its_tie_to_the_optimizer(loop):
    record = loop(batches=1).run()
    assert record.scheduler.optimizers == [record.optimizer]
    assert record.accelerator._optimizers[0] is record.optimizer


def test_a_parameter_group_that_is_added_later_is_watched(loop):
    record, _ = loop(scaler=None).prepare()
    for number in range(2):
        extra = torch.nn.Parameter(torch.ones(()))
        record.optimizer.add_param_group({"params": [extra]})
        (extra * 2).backward()
        record.optimizer.step()
        assert record.optimizer.applied_step == number + 1


def test_a_backward_pass_before_an_optimizer_was_prepared_is_none_of_its_own(loop):
    record = loop(batches=1, scaler=None).run()
    later = record.accelerator.prepare(torch.optim.SGD(torch.nn.Linear(1, 1).parameters()))
    later.step()
    assert later.attempted_step == 0


@pytest.mark.parametrize("scaler", [None, {}])
@pytest.mark.parametrize("tied", [True, False])
def test_a_second_step_on_the_same_gradients_is_no_attempt(loop, scaler, tied):
    record, loader = loop(scaler=scaler).prepare()
    if not tied:
        record.optimizer.start_counting(None, record.optimizer.passes)
    record.accelerator.backward(record.model(next(iter(loader))).mean())
    for _ in range(2):
        record.optimizer.step()
    assert (record.optimizer.attempted_step, record.optimizer.applied_step) == (1, 1)


def test_a_restarted_optimizer_has_skipped_nothing(loop):
    copied = copy.deepcopy(loop(infinite=[0], batches=1).run().optimizer)
    assert copied.step_was_skipped
    copied.restart({"attempted": 5, "applied": 3, "skipped": 2, "skipped_in_a_row": 1})
    assert not copied.step_was_skipped
    assert copied.counts() == {"attempted": 5, "applied": 3, "skipped": 2, "skipped_in_a_row": 1}


@pytest.mark.parametrize("set_to_none", [True, False, None])
def test_gradients_are_reset_as_asked(loop, set_to_none):
    record, loader = loop(scaler=None).prepare()
    record.accelerator.backward(record.model(next(iter(loader))).mean())
    record.optimizer.zero_grad(set_to_none=set_to_none)
    grads = [parameter.grad for parameter in record.model.parameters()]
    assert all(grad is None if set_to_none in (True, None) else not grad.any() for grad in grads)


@pytest.mark.parametrize("scaler", [None, {}])
def test_a_closure_is_passed_on(loop, scaler):
    record, loader = loop(scaler=scaler).prepare()
    called = []
    record.accelerator.backward(record.model(next(iter(loader))).mean())
    record.optimizer.step(lambda: called.append(1))
    assert called == [1]
    assert record.optimizer.applied_step == 1


def test_an_error_in_the_step_is_no_update(loop):
    record, _ = loop().prepare()
    record.accelerator.backward(torch.ones((), requires_grad=True) * 1)  # reaches no parameter of the optimizer
    with pytest.raises(AssertionError, match="No inf checks"):
        record.optimizer.step()
    assert record.accelerator.attempted_step == record.optimizer.attempted_step == 0
    assert isinstance(record.optimizer.scaler, torch.amp.GradScaler)


def test_what_was_in_place_of_the_step_before_counting_goes_on_being_called(loop):
    record, loader = loop(accelerate.Accelerator, scaler=None).prepare()
    calls, plain_step = [], record.optimizer.step
    record.optimizer.step = lambda *args: (calls.append(args), plain_step(*args))[1]
    accelerate_ext.attach(record.accelerator)
    record.accelerator.backward(record.model(next(iter(loader))).mean())
    record.optimizer.step()
    assert (calls, record.optimizer.applied_step) == ([()], 1)


@pytest.mark.parametrize("detached", [False, True])
def test_a_scheduler_made_while_counting_sees_the_steps(loop, detached):
    record, loader = loop(scaler=None).prepare()
    scheduler = torch.optim.lr_scheduler.StepLR(record.optimizer, 1)
    if detached:
        accelerate_ext.detach(record.accelerator)
    record.accelerator.backward(record.model(next(iter(loader))).mean())
    record.optimizer.step()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # torch warns at the first step of a scheduler that saw none of the optimizer
        scheduler.step()


def test_a_wrapped_scheduler_patch_on_the_inner_step_survives(loop):
    plain = loop(accelerate.Accelerator, infinite=[1], batches=3).run()
    ours = loop(infinite=[1], batches=3).run()
    for name in ("_step_count", "last_epoch"):
        assert getattr(ours.scheduler.scheduler, name) == getattr(plain.scheduler.scheduler, name)


CLOSED = {
    "lbfgs": lambda parameters: torch.optim.LBFGS(parameters, lr=0.1, max_iter=3),
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
}


@pytest.mark.parametrize("kind", sorted(CLOSED))
@pytest.mark.parametrize("in_a_window", [False, True])
def test_a_step_whose_closure_makes_the_gradients_is_one_applied_update(kind, in_a_window):
    accelerator = accelerate_ext.Accelerator(cpu=True)
    model = torch.nn.Linear(4, 1)
    model, optimizer = accelerator.prepare(model, CLOSED[kind](model.parameters()))

    def closure():
        optimizer.zero_grad()
        loss = model(torch.ones(2, 4)).pow(2).mean()
        accelerator.backward(loss)
        return loss

    outcomes = []
    for _ in range(4):
        if in_a_window:
            with accelerator.attempt(model) as update:
                optimizer.step(closure)
            outcomes.append(update.outcome)
        else:
            optimizer.step(closure)
    assert outcomes == (["applied"] * 4 if in_a_window else [])
    assert (accelerator.attempted_step, accelerator.applied_step, optimizer.applied_step) == (4, 4, 4)


def test_a_closure_that_makes_no_gradients_is_no_attempt(loop):
    record, _ = loop(scaler=None).prepare()
    record.optimizer.step(lambda: torch.zeros(()))
    assert (record.accelerator.attempted_step, record.optimizer.attempted_step) == (0, 0)


def test_a_closure_cannot_be_guarded_and_is_refused_before_anything_moves(loop):
    record, loader = loop(scaler=None, options={"skip_nonfinite": True}).prepare()
    before = record.model[0].weight.detach().clone()
    with pytest.raises(ValueError, match=r"`skip_nonfinite` cannot .* closure.*call `backward` before `step\(\)`"):
        record.optimizer.step(lambda: record.accelerator.backward(record.model(next(iter(loader))).mean()))
    assert torch.equal(record.model[0].weight, before)
    assert record.accelerator.attempted_step == 0
