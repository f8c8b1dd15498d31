"""What statements do, as far as counting updates goes."""

import pytest

from tools.options import Options
from tools.source import Source
from tools.work import Work

HEAD = """\
accelerator = Accelerator()
optimizer = accelerator.prepare(SGD())
scheduler = get_scheduler()
prepared_scheduler = accelerator.prepare(get_scheduler())
average = EMAModel()
bar = tqdm()


class Trainer:
    def counts(self): self.steps += 1
    def averages(self): self.ema.step()
    def shows(self): bar.update(1)
    def asks(self):
        if accelerator.sync_gradients: self.steps += 1
    def asks_skip(self):
        if not optimizer.step_was_skipped: self.steps += 1
    def own(self):
        n = 0
        n += 1
    def outer(self): global_step += 1
    def data(self): self.num_batches += 1
    def again(self): self.counts()
    def round(self): self.round()
    def attempts(self):
        self.steps += 1
        optimizer.step()

    def train(self):
        optimizer.step()
"""


def read(text, last=True):
    """The reading of a file that ends with a statement of the training method, and that statement."""
    lines = "".join(f"        {line}\n" for line in text.splitlines())
    work = Work(Source(HEAD + lines), Options())
    train = next(scope for scope in work.script.scopes if scope.name == "train")
    return work, train.node.body[-1]


def answers(question, text):
    work, node = read(text)
    return getattr(work.traits, question)(node)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("accelerator.clip_grad_norm_(1)", True),
        ("accelerator.clip_grad_value_(1)", True),
        ("torch.nn.utils.clip_grad_norm_(1)", True),
        ("clip_gradients(1)", True),
        ("clip_grads(1)", True),
        ("clip_(1)", True),
        ("if x:\n    accelerator.clip_grad_norm_(1)", True),
        ("ClipGrad_norm(1)", False),
        ("eclip_(1)", False),
        ("clip = 1", False),
        ("log('clip_grad')", False),
        ("clip_grad = 1", False),
    ],
)
def test_what_clips_gradients(text, answer):
    work, node = read(text)
    assert work.traits.clips([node]) is answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("average.step()", True),
        ("average.update(1)", True),
        ("average.update_parameters(1)", True),
        ("average.update_average(1)", True),
        ("average.update_averages(1)", True),
        ("average.__call__(1)", True),
        ("average.lerp(1)", True),
        ("average.eval()", False),
        ("average(1)", True),
        ("x = average(1)", False),
        ("trainer.average(1)", False),
        ("trainer.swa_model(1)", True),
        ("self.ema(1)", True),
        ("x = self.ema(1)", False),
        ("x = average.step()", True),
        ("self.ema.step()", True),
        ("self.model_ema.params.update(1)", True),
        ("ema['a'].update(1)", True),
        ("meter.update(1)", False),
        ("schema.update(1)", False),
        ("things().update(1)", False),
        ("update_ema(1)", True),
        ("my_update_ema_weights(1)", True),
        ("step_ema(1)", True),
        ("apply_ema(1)", True),
        ("update_average(1)", True),
        ("update_averages(1)", True),
        ("update_swa(1)", True),
        ("ema_update(1)", True),
        ("model_ema_step(1)", True),
        ("self.tools.update_ema(1)", True),
        ("make().update_ema(1)", True),
        ("x = ema_loss(1)", False),
        ("x = get_ema(1)", False),
        ("self.get_ema(1)", True),
        ("x = update_ema(1)", True),
        ("update(1)", False),
        ("x = 1", False),
    ],
)
def test_what_moves_an_average(text, answer):
    assert answers("averages", text) is answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("bar.update(1)", True),
        ("bar.update(x)", True),
        ("progress_bar.update(1)", True),
        ("bar.set_postfix(1)", False),
        ("x = bar.update(1)", False),
        ("meter.update(1)", False),
        ("bar.update(accelerator.sync_gradients)", False),
        ("update(1)", False),
        ("make().update(1)", False),
    ],
)
def test_what_moves_a_progress_bar(text, answer):
    assert answers("shows_progress", text) is answer


@pytest.mark.parametrize(
    ("text", "owner", "is_raw"),
    [
        ("scheduler.step()", "scheduler", True),
        ("prepared_scheduler.step()", "prepared_scheduler", False),
        ("self.lr_scheduler.step(1)", "self.lr_scheduler", False),
        ("scheduler.get_lr()", None, False),
        ("x = scheduler.step()", None, False),
        ("optimizer.step()", None, False),
        ("step()", None, False),
        ("make().step()", None, False),
    ],
)
def test_what_steps_a_scheduler(text, owner, is_raw):
    assert answers("scheduler", text) == owner
    assert answers("is_raw_scheduler", text) is is_raw


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("accelerator.log(1)", True),
        ("log_metrics(1)", True),
        ("my_log(1)", True),
        ("write_logs(1)", True),
        ("self.logger(1)", True),
        ("logging(1)", True),
        ("writer.add_scalar(1)", True),
        ("writer.add_scalars(1)", True),
        ("report(1)", True),
        ("report_to(1)", True),
        ("tracker(1)", True),
        ("accelerator.save_state(1)", True),
        ("checkpoint(1)", True),
        ("write_ckpt(1)", True),
        ("json.dump(1)", True),
        ("x = save(1)", True),
        ("login(1)", False),
        ("dialog(1)", False),
        ("logo(1)", False),
        ("my_report(1)", False),
        ("add_scalar_box(1)", False),
        ("log.info(1)", False),
        ("print(1)", False),
        ("save = 1", False),
    ],
)
def test_what_logs_or_saves(text, answer):
    assert answers("logs_or_saves", text) is answer


@pytest.mark.parametrize(
    ("texts", "answer"),
    [
        (["log_grad_norm(1)"], True),
        (["log({'gradnorm': 1})"], True),
        (["log(norm_grad)"], True),
        (["log({'grad/total_norm': 1})"], True),
        (["log({'grad_norm': 1})", "log_grad_norm(2)"], True),
        (["log({'grad_norm': 1})", "log(1)"], False),
        (["grad_norm = f()"], False),
        (["grad_norm"], False),
        (["log({'norm': 1})"], False),
        ([], False),
    ],
)
def test_what_logs_nothing_but_norms_of_gradients(texts, answer):
    work = Work(Source(HEAD + "".join(f"        {text}\n" for text in texts)), Options())
    train = next(scope for scope in work.script.scopes if scope.name == "train")
    assert work.traits.logs_gradients(train.node.body[1:]) is answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("optimizer.zero_grad()", True),
        ("model.zero_grad(set_to_none=True)", True),
        ("num_samples += 8", True),
        ("self.tokens_seen += n", True),
        ("num_samples = 8", False),
        ("global_step += 1", False),
        ("zero_grad(optimizer)", False),
        ("x = optimizer.zero_grad()", False),
        ("optimizer.clear()", False),
    ],
)
def test_what_belongs_to_every_boundary(text, answer):
    assert answers("must_run", text) is answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("global_step += 1", True),
        ("average.step()", True),
        ("bar.update(1)", True),
        ("if x:\n    global_step += 1", True),
        ("with x:\n    average.step()", True),
        ("num_batches += 1", False),
        ("optimizer.step()", False),
        ("if x:\n    optimizer.step()\n    global_step += 1", False),
        ("def f():\n    global_step += 1", False),
        ("async def f():\n    global_step += 1", False),
        ("class A:\n    global_step += 1", False),
        ("self.counts()", True),
        ("x = self.counts()", True),
        ("self.averages()", True),
        ("self.shows()", True),
        ("self.again()", True),
        ("self.outer()", True),
        ("self.asks()", False),
        ("self.asks_skip()", False),
        ("self.own()", False),
        ("self.data()", False),
        ("self.round()", False),
        ("self.attempts()", False),
        ("self.counts(accelerator.sync_gradients)", False),
        ("x = self.counts(accelerator.sync_gradients)", False),
        ("print(1)", False),
    ],
)
def test_what_counts_updates(text, answer):
    assert answers("counts", text) is answer


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("global_step += 1", ["global_step"]),
        ("num_batches += 1", []),
        ("self.counts()", ["self.steps"]),
        ("self.again()", ["self.steps"]),
        ("self.outer()", ["global_step"]),
        ("self.own()", []),
        ("self.asks()", []),
        ("if x:\n    a += 1\n    b += 1\n    a += 1\n    self.counts()", ["a", "b", "self.steps"]),
    ],
)
def test_the_counters_of_a_block(text, found):
    work, node = read(text)
    assert work.traits.counters_in([node]) == found
    assert work.traits.counters_in([node]) == found


@pytest.mark.parametrize(
    ("test", "answer"),
    [
        ("n % 9 == 0", True),
        ("(n + 1) % 9 == 0", True),
        ("not n % 9", True),
        ("n == 9", True),
        ("9 == n", True),
        ("n in (1, 2)", True),
        ("x and n == 9", True),
        ("a.n % 9 == 0", False),
        ("n > 9", False),
        ("n != 9", False),
        ("x in n", False),
        ("n * 9", False),
        ("n", False),
        ("x % 9 == 0", False),
    ],
)
def test_tests_that_hold_at_single_values_of_a_counter(test, answer):
    work, node = read(f"if {test}: pass")
    assert work.traits.trigger(node.test, ["n"]) is answer


def test_what_reads_a_counter():
    work, node = read("if x:\n    print(n)\nelse:\n    f(a.n)")
    assert work.traits.reads(node, ["n"])
    assert work.traits.reads(node, ["a.n"])
    assert not work.traits.reads(node, ["m"])
    assert not work.traits.asks_counter(node.test, ["n"])
    assert work.traits.asks_counter(node.test, ["x"])
