"""What a gated block clears for the next window."""

import pytest

from tools.rewrite import rewrite

GATE = "accelerator.sync_gradients and not accelerator.optimizer_step_was_skipped"


def test_a_sum_is_cleared_in_an_arm_of_its_own(loop):
    assert loop.becomes(
        "if accelerator.sync_gradients:\n    global_step += 1\n    window = 0.0\n    # done",
        f"if {GATE}:\n    global_step += 1\n    window = 0.0\n    # done\nelif accelerator.sync_gradients:\n    window = 0.0",
    )


def test_the_arm_has_the_whole_test_of_the_block(loop):
    assert loop.becomes(
        "if main and accelerator.sync_gradients:\n    global_step += 1\n    window = 0.0",
        f"if main and {GATE}:\n    global_step += 1\n    window = 0.0\n"
        "elif main and accelerator.sync_gradients:\n    window = 0.0",
    )


def test_a_reset_under_a_simple_test_keeps_that_test(loop):
    assert loop.becomes(
        "if accelerator.sync_gradients:\n    global_step += 1\n    if args.log:\n        window = 0.0",
        f"if {GATE}:\n    global_step += 1\n    if args.log:\n        window = 0.0\n"
        "elif accelerator.sync_gradients:\n    if args.log:\n        window = 0.0",
    )


def test_a_block_that_clears_nothing_gets_no_arm(loop):
    assert loop.becomes(
        "if accelerator.sync_gradients:\n    global_step += 1\n    best = 0.0",
        f"if {GATE}:\n    global_step += 1\n    best = 0.0",
    )


def test_a_sum_that_is_never_cleared_is_reported_and_gets_no_reset(loop):
    result = loop.rewrite("if accelerator.sync_gradients:\n    global_step += 1\n    accelerator.log({'a': window})")
    assert "elif" not in result.after.decode()
    assert "never-reset" in {site.code for site in result.sites}


def test_gradients_are_cleared_and_data_is_counted_at_every_boundary(make_loop):
    loop = make_loop(step="with accelerator.accumulate(model):\n    optimizer.step()\n")
    assert loop.becomes(
        "if accelerator.sync_gradients:\n    optimizer.zero_grad()\n    global_step += 1\n    tokens_seen += 8",
        f"if {GATE}:\n    optimizer.zero_grad()\n    global_step += 1\n    tokens_seen += 8\n"
        "elif accelerator.sync_gradients:\n    optimizer.zero_grad()\n    tokens_seen += 8",
    )


def test_a_sum_over_several_updates_goes_back_to_where_it_was(loop):
    body = "if accelerator.sync_gradients:\n    global_step += 1\n    if global_step % 9 == 0:\n        window = 0.0"
    after = loop.rewrite(body).after.decode()
    assert "window, global_step = EMAModel(model), tqdm(), 0.0, 0\n    applied_window = window + 0\n" in after
    assert "            applied_window = window + 0\n        elif accelerator.sync_gradients:\n" in after
    assert "            window = applied_window + 0\n" in after


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("    window, last = 0.0, global_step", "mixed-reset"),
        ("    if ready(batch):\n        window = 0.0", "nested-reset"),
        ("    with lock:\n        window = 0.0", "nested-reset"),
        ("    if global_step % 9 == 0:\n        window = 0.0\n    if last:\n        continue", "window-of-updates"),
        ("    if global_step % 9 == 0:\n        window = 0.0\nelse:\n    pass", "window-of-updates"),
    ],
)
def test_what_cannot_be_repeated_safely_keeps_the_block_as_it_is(loop, body, code):
    assert code in loop.stays(f"if accelerator.sync_gradients:\n    global_step += 1\n{body}")


@pytest.mark.parametrize(
    "count",
    ["global_step += 1 if accelerator.sync_gradients else 0", "state['step'] = state['step'] + stride"],
)
def test_counts_are_no_sums_that_somebody_forgot_to_clear(loop, count):
    body = f"{count}\nif accelerator.sync_gradients:\n    accelerator.log({{}}, step=global_step + len(state))"
    assert "never-reset" not in loop.codes(body)


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_a_reset_over_lines_keeps_their_ends(loop, newline):
    body = "if accelerator.sync_gradients:\n    global_step += 1\n    window = torch.zeros(\n        1,\n    )"
    after = rewrite(loop.source(body).replace("\n", newline).encode()).after.decode()
    wanted = f"if {GATE}:\n    global_step += 1\n    window = torch.zeros(\n        1,\n    )\n"
    wanted += "elif accelerator.sync_gradients:\n    window = torch.zeros(\n        1,\n    )"
    assert after == loop.source(wanted).replace("\n", newline)


OBJECT = """\
from accelerate import Accelerator


class State:
    def advance(this):
        this.step += 1
        {statement}

    def clear(this):
        this.losses = []


def main(model, optimizer, loader):
    accelerator = Accelerator(gradient_accumulation_steps=2)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    state = State()
    for batch in loader:
        with accelerator.accumulate(model):
            loss = model(batch)
            state.losses.append(loss)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            accelerator.log({{"loss": sum(state.losses) / 2}})
            state.advance()
"""


@pytest.mark.parametrize("statement", ["this.losses = []", "this.losses.clear()", "this.clear()"])
def test_what_an_object_clears_of_itself_is_no_reset_that_can_be_repeated(statement):
    result = rewrite(OBJECT.format(statement=statement).encode())
    assert result.after == result.before
    refused = [site for site in result.sites if site.code == "nested-reset"]
    assert ["`advance`, which clears `state.losses`" in site.message for site in refused] == [True]


def test_an_object_that_clears_something_else_of_itself_does_not_stand_in_the_way():
    result = rewrite(OBJECT.format(statement="this.notes = []").encode())
    assert GATE in result.after.decode()


OF_SELF = OBJECT.replace("state = State()", "self.state = State()").replace(" state.", " self.state.")
OF_SELF = OF_SELF.replace("sum(state.", "sum(self.state.").replace(
    "def main(model", "class Run:\n  def main(self, model"
)
GATED = OBJECT.replace("if accelerator.sync_gradients:", f"if {GATE}:")


def test_an_object_that_self_holds_is_no_other_case():
    result = rewrite(OF_SELF.format(statement="this.losses = []").encode())
    assert result.after == result.before
    assert ["clears `self.state.losses`" in site.message for site in result.sites if site.code == "nested-reset"] == [
        True
    ]


def test_a_gated_block_whose_object_clears_itself_is_not_right():
    sites = rewrite(GATED.format(statement="this.losses = []").encode()).sites
    assert [site.code for site in sites if "state.losses" in site.message] == ["reset-missing"]


def test_an_object_that_clears_itself_at_skipped_boundaries_too_is_right():
    text = (
        GATED.format(statement="this.losses = []")
        + "        elif accelerator.sync_gradients:\n            state.clear()\n"
    )
    assert {site.code for site in rewrite(text.encode()).sites if site.outcome.value == "refused"} == set()


def test_a_window_that_is_cleared_two_calls_away_is_cleared_at_skipped_boundaries_too(loop):
    inner = "    def clear():\n        nonlocal window\n        window = 0.0\n\n    def finish():\n        clear()\n\n"
    body = "if accelerator.sync_gradients:\n    global_step += 1\n    finish()"
    text = loop.source(body).replace("    for step, batch", inner + "    for step, batch")
    wanted = f"if {GATE}:\n            global_step += 1\n            finish()\n"
    wanted += "        elif accelerator.sync_gradients:\n            window = 0.0\n"
    assert rewrite(text.encode()).after.decode().endswith(wanted)


def test_functions_that_call_each_other_and_clear_a_window_come_to_an_end(loop):
    inner = "    def one():\n        nonlocal window\n        window = 0.0\n        two()\n\n    def two():\n        one()\n\n"
    text = loop.source("if accelerator.sync_gradients:\n    global_step += 1\n    one()")
    after = rewrite(text.replace("    for step, batch", inner + "    for step, batch").encode()).after.decode()
    assert after.endswith("        elif accelerator.sync_gradients:\n            window = 0.0\n")


LIST_STEP = "hist.append(loss)\naccelerator.backward(loss)\noptimizer.step()\noptimizer.zero_grad()\n"
EVERY = "if accelerator.sync_gradients:\n    global_step += 1\n    if global_step % 9 == 0:\n        "


@pytest.mark.parametrize("clear", ["hist = []", "hist.clear()", "del hist[:]"])
@pytest.mark.parametrize("growth", ["hist.append(loss)", "hist += [loss]", "hist = hist + [loss]"])
def test_a_list_over_several_updates_goes_back_to_where_it_was(make_loop, clear, growth):
    made = make_loop(step=LIST_STEP.replace("hist.append(loss)", growth))
    before = made.source(EVERY + clear).replace("    for step,", "    hist = []\n    for step,")
    result = rewrite(before.encode())
    after = result.after.decode()
    assert "    hist = []\n    applied_hist = list(hist)\n" in after
    assert "            applied_hist = list(hist)\n        elif accelerator.sync_gradients:\n" in after
    assert "            hist[:] = applied_hist\n" in after
    assert "sums-kept" in {site.code for site in result.sites}


@pytest.mark.parametrize(
    ("growth", "clear"),
    [
        ("meter.add(loss)", "meter.reset()"),
        ("meter.update(loss)", "meter = AverageMeter()"),
        ("hist['loss'].append(loss)", "hist['loss'].clear()"),
        ("hist.append(loss)", "hist.clear()"),
    ],
)
def test_what_gathers_over_several_updates_and_cannot_be_put_back_keeps_its_block(make_loop, growth, clear):
    loop = make_loop(step=LIST_STEP.replace("hist.append(loss)", growth))
    result = loop.rewrite(EVERY + clear)
    assert result.before == result.after
    assert "window-of-updates" in {site.code for site in result.sites}


def test_a_bar_that_starts_again_is_no_window(make_loop):
    loop = make_loop(step=LIST_STEP.replace("hist.append(loss)", "progress_bar.update(0)"))
    assert "gated" in loop.codes(EVERY + "progress_bar.reset()")


def test_a_meter_of_times_is_no_window(make_loop):
    loop = make_loop(step=LIST_STEP.replace("hist.append(loss)", "batch_time_m.update(time.time() - end)"))
    assert "gated" in loop.codes(EVERY + "batch_time_m.reset()")


@pytest.mark.parametrize("growth", ["window += loss", "window = window + loss.detach()"])
@pytest.mark.parametrize("reset", ["zero = torch.zeros(())\n    window = zero", "if every:\n        window = zero"])
def test_a_sum_that_is_set_to_a_name_asks_for_the_value_itself(make_loop, growth, reset):
    loop = make_loop(step="zero = 0.0\n" + LIST_STEP.replace("hist.append(loss)", growth))
    result = loop.rewrite(f"if accelerator.sync_gradients:\n    global_step += 1\n    {reset}")
    assert "write the value itself" in next(site.message for site in result.sites if site.code == "mixed-reset")


def test_a_sum_of_applied_updates_may_be_set_to_any_name(make_loop):
    loop = make_loop(step="zero = 0.0\n" + LIST_STEP.replace("hist.append(loss)", "pass"))
    body = "if accelerator.sync_gradients:\n    global_step += 1\n    kept += loss\n    kept = zero"
    assert "gated" in loop.codes(body)


@pytest.mark.parametrize("grows", ["self.total += 1", "self.total = self.total + 1"])
def test_what_a_method_clears_counts_however_it_grows(grows):
    text = f"""
from accelerate import Accelerator
import torch


class Trainer:
    def __init__(self):
        self.accelerator = Accelerator(gradient_accumulation_steps=4)
        self.optimizer = self.accelerator.prepare(torch.optim.AdamW())
        self.global_step, self.total = 0, 0.0

    def after_update(self):
        self.global_step += 1
        self.accelerator.log({{"loss": self.total}}, step=self.global_step)
        self.total = 0.0

    def train(self, loader):
        for batch in loader:
            with self.accelerator.accumulate():
                {grows}
                self.optimizer.step()
            if self.accelerator.sync_gradients:
                self.after_update()
"""
    after = rewrite(text.encode()).after.decode()
    assert after.endswith("            elif self.accelerator.sync_gradients:\n                self.total = 0.0\n")


def test_a_sum_that_a_constructor_starts_is_remembered_before_the_loop():
    text = """
from accelerate import Accelerator
import torch


class Trainer:
    def __init__(self):
        self.accelerator = Accelerator(gradient_accumulation_steps=4)
        self.optimizer = self.accelerator.prepare(torch.optim.AdamW())
        self.global_step, self.total = 0, 0.0

    def train(self, loader):
        for epoch in range(3):
            for batch in loader:
                with self.accelerator.accumulate():
                    self.total += 1
                    self.optimizer.step()
                if self.accelerator.sync_gradients:
                    self.global_step += 1
                    if self.global_step % 5 == 0:
                        self.total = 0.0
"""
    after = rewrite(text.encode()).after.decode()
    assert "        applied_total = self.total + 0\n        for epoch in range(3):\n" in after
    assert after.endswith(
        "                    applied_total = self.total + 0\n"
        "                elif self.accelerator.sync_gradients:\n"
        "                    self.total = applied_total + 0\n"
    )


def test_a_sum_over_several_updates_that_a_method_clears_is_put_back():
    text = """
from accelerate import Accelerator
import torch


class Trainer:
    def __init__(self):
        self.accelerator = Accelerator(gradient_accumulation_steps=4)
        self.optimizer = self.accelerator.prepare(torch.optim.AdamW())
        self.global_step, self.total, self.losses = 0, 0.0, []

    def after_update(self):
        self.global_step += 1
        if self.global_step % 5 == 0:
            self.accelerator.log({"loss": self.total, "losses": self.losses}, step=self.global_step)
            self.total = 0.0
            self.losses.clear()

    def train(self, loader):
        for batch in loader:
            with self.accelerator.accumulate():
                self.total += 1
                self.losses.append(1)
                self.optimizer.step()
            if self.accelerator.sync_gradients:
                self.after_update()
"""
    after = rewrite(text.encode()).after.decode()
    assert (
        "        applied_total = self.total + 0\n        applied_losses = list(self.losses)\n        for batch"
        in after
    )
    assert after.endswith(
        "                self.after_update()\n"
        "                applied_total = self.total + 0\n"
        "                applied_losses = list(self.losses)\n"
        "            elif self.accelerator.sync_gradients:\n"
        "                self.total = applied_total + 0\n"
        "                self.losses[:] = applied_losses\n"
    )
