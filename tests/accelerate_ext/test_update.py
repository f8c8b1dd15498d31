"""Verdicts and updates."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch.overrides import TorchFunctionMode

from accelerate_ext.update import Update, Verdict, event_on, on_one_device, sent
from benchmarks.device_reads import DeviceReads


def on_device(skipped: bool) -> Verdict:
    return Verdict(found_inf=torch.full((), float(skipped)))


@pytest.mark.parametrize("skipped", [False, True])
def test_a_verdict_on_the_device_is_read_once(skipped):
    verdict = on_device(skipped)
    assert not verdict.is_known
    with DeviceReads() as reads:
        assert [verdict.skipped for _ in range(3)] == [skipped] * 3
    assert reads.count == 1
    assert verdict.is_known


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("second", [False, True])
@pytest.mark.parametrize("kinds", [(Verdict, Verdict), (Verdict, on_device), (on_device, on_device)])
def test_an_attempt_is_skipped_when_any_of_its_steps_was(first, second, kinds):
    assert Verdict.of_all([kinds[0](first), kinds[1](second)]).skipped == (first or second)


def test_a_settled_verdict_holds_nothing_of_the_device():
    verdict = on_device(True)
    assert verdict.skipped
    assert verdict.found_inf is None and verdict.parcel is None


@pytest.mark.parametrize("devices", [("meta", "cpu"), ("meta", "meta"), ("cpu", "cpu")])
def test_answers_of_several_devices_come_together_on_the_first(devices):
    verdicts = [Verdict(found_inf=torch.zeros((), device=device)) for device in devices]
    together = on_one_device(verdicts)
    assert together.shape == (2,) and together.device.type == devices[0]


class Copies(TorchFunctionMode):
    """Notes whether copies from one device to another are waited for."""

    def __init__(self):
        super().__init__()
        self.waited_for = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.Tensor.to:
            self.waited_for.append(not kwargs["non_blocking"])
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("device", "is_waited_for"), [("meta", False), ("cpu", True)])
def test_what_is_sent_to_the_host_is_waited_for_since_it_may_be_read_at_once(device, is_waited_for):
    with Copies() as copies:
        assert sent(torch.ones(()), torch.device(device)).device.type == device
    assert copies.waited_for == [is_waited_for]


class Device:
    """Stands in for a module such as torch.cuda, of which there is none here."""

    def __init__(self):
        self.recorded = []

    def Event(self):
        return SimpleNamespace(record=lambda *streams: self.recorded.append(streams))


def test_an_event_is_recorded_on_the_stream_of_the_device_that_it_is_for(monkeypatch):
    module = Device()
    monkeypatch.setattr(torch, "get_device_module", lambda device: module)
    event_on(torch.device("mps"))
    module.current_stream = lambda device: f"stream of {device}"
    event_on(torch.device("cuda:1"))
    assert module.recorded == [(), ("stream of cuda:1",)]


def test_combining_reads_nothing():
    with DeviceReads() as reads:
        Verdict.of_all([on_device(True), on_device(False), Verdict(False)])
    assert reads.count == 0


def test_a_fresh_update_is_not_attempted():
    update = Update()
    assert (update.attempted, update.applied, update.skipped) == (False, False, False)
    assert update.outcome == "not attempted"
    assert repr(update) == "<Update: not attempted>"


@pytest.mark.parametrize(("skipped", "outcome"), [(False, "applied"), (True, "skipped")])
def test_a_step_decides(skipped, outcome):
    update = Update()
    optimizer = object()
    update.add(optimizer, Verdict(skipped))
    assert (update.attempted, update.applied, update.skipped) == (True, not skipped, skipped)
    assert update.outcome == outcome and update.has_steps
    assert repr(update) == f"<Update: {outcome}>"
    assert update.was_skipped_for(optimizer) == skipped
    assert not update.was_skipped_for(object())


def test_showing_an_update_reads_nothing():
    update = Update()
    update.add(object(), on_device(True))
    with DeviceReads() as reads:
        assert repr(update) == "<Update: attempted, the answer is on the device>"
    assert reads.count == 0


def test_closing_without_a_step_is_a_skip_until_a_step_comes():
    update = Update()
    optimizer = object()
    update.close_without_step((optimizer,))
    assert update.skipped and update.was_skipped_for(optimizer) and not update.has_steps
    update.add(optimizer, Verdict(False))
    assert update.applied and not update.was_skipped_for(optimizer)


def test_the_last_step_of_an_optimizer_is_the_one_it_reports():
    update = Update()
    optimizer = object()
    update.add(optimizer, Verdict(True))
    update.add(optimizer, Verdict(False))
    assert not update.was_skipped_for(optimizer)
    assert not update.applied
