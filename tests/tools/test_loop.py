"""What the reader of a training loop sees: objects, attempts, guards, counters and windows."""

import textwrap

import pytest

from tools.loop.blocks import Role
from tools.options import Options
from tools.source import Source
from tools.work import Work

HEAD = """\
from accelerate import Accelerator


def main(loader, args):
    accelerator = Accelerator(gradient_accumulation_steps=args.steps)
    model, optimizer, scheduler = build()
    optimizer = torch.optim.AdamW(model.parameters())
    scheduler = get_scheduler("linear", optimizer)
    model, optimizer = accelerator.prepare(model, optimizer)
    global_step = 0
    for step, batch in enumerate(loader):
"""


def read(body, head=HEAD):
    text = head + textwrap.indent(textwrap.dedent(body).strip("\n"), "        ") + "\n"
    return Work(Source(text), Options())


def roles(work):
    return [block.role for block in work.blocks]


STEP = """
with accelerator.accumulate(model):
    accelerator.backward(model(batch))
    optimizer.step()
"""


def test_the_same_test_is_a_clip_guard_above_the_step_and_bookkeeping_below():
    work = read("""
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if accelerator.sync_gradients:
            global_step += 1
    """)
    assert roles(work) == [Role.CLIP, Role.BOOKKEEPING]


def test_a_guard_that_clips_and_steps_lets_its_own_tail_be_seen():
    work = read("""
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            global_step += 1
    """)
    assert roles(work) == [Role.CLIP_AND_STEP, Role.TAIL]


@pytest.mark.parametrize(
    ("body", "role"),
    [
        ("if not accelerator.sync_gradients:\n    continue\nglobal_step += 1", Role.CONTINUE),
        ("if accelerator.sync_gradients:\n    optimizer.zero_grad()", Role.BOUNDARY),
        ("if accelerator.sync_gradients and global_step % 9 == 0:\n    log_grad_norm(model)", Role.NORM_LOG),
        ("if accelerator.sync_gradients or step == 3:\n    global_step += 1", Role.UNCLEAR),
        (
            "if accelerator.sync_gradients and not accelerator.optimizer_step_was_skipped:\n    global_step += 1",
            Role.APPLIED,
        ),
        ("if not optimizer.step_was_skipped:\n    global_step += 1", Role.APPLIED),
        ("if accelerator.optimizer_step_was_skipped:\n    continue\nglobal_step += 1", Role.APPLIED),
        ("if not (accelerator.sync_gradients and optimizer.step_was_skipped):\n    scheduler.step()", Role.APPLIED),
        ("global_step += 1", Role.TAIL),
    ],
)
def test_places_behind_the_step_are_told_apart(body, role):
    assert roles(read(STEP + body)) == [role]


def test_places_above_the_step_are_told_apart():
    flag = "accelerator.sync_gradients and not accelerator.optimizer_step_was_skipped"
    assert roles(read(f"if {flag}:\n    global_step += 1" + STEP)) == [Role.STALE]
    assert roles(read("if accelerator.sync_gradients:\n    print(1)" + STEP)) == [Role.BEFORE]
    assert roles(read("if not accelerator.sync_gradients:\n    continue\noptimizer.step()")) == [Role.BEFORE]


def test_a_guard_without_any_step_is_one():
    assert roles(read("if accelerator.sync_gradients:\n    global_step += 1")) == [Role.NO_STEP]


def test_objects_are_known_by_how_they_are_made_and_not_by_their_names():
    work = read("pass")
    scope = next(scope for scope in work.script.scopes if scope.name == "main")
    kinds = {name: work.objects.kind(scope, name) for name in ("accelerator", "optimizer", "scheduler")}
    assert kinds == {"accelerator": "accelerator", "optimizer": "optimizer", "scheduler": "scheduler"}
    work = read("pass", HEAD.replace("optimizer = torch", "thing = torch"))
    scope = next(scope for scope in work.script.scopes if scope.name == "main")
    assert work.objects.kind(scope, "thing") == "optimizer"


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("optimizer = accelerator.prepare(optimizer)", True),
        ("optimizer = accelerator.prepare_optimizer(optimizer)", True),
        ("optimizer, x = accelerator.prepare(optimizer), 1", True),
        ("model = accelerator.prepare(model)", False),
        ("accelerator.prepare(optimizer)", False),
        ("things = accelerator.prepare(*things)", None),
        ("(model, optimizer) = (accelerator.prepare(model, optimizer))", True),
    ],
)
def test_preparation_is_read_from_what_is_assigned(line, answer):
    text = f"def main(model):\n    optimizer = SGD(model)\n    accelerator = Accelerator()\n    {line}\n    optimizer.step()\n"
    work = Work(Source(text), Options())
    scope = work.script.scopes[1]
    assert work.objects.is_prepared(work.objects.identity(scope, "optimizer")) is answer


def test_two_arms_that_prepare_the_same_optimizer_count_once_and_two_stages_twice():
    once = "if a:\n    opt = acc.prepare(opt)\nelse:\n    model, opt = acc.prepare(model, opt)\n"
    twice = "opt = acc.prepare(SGD(model))\nopt = acc.prepare(SGD(other))\n"
    for text, number in ((once, 1), (twice, 2)):
        work = Work(Source("acc = Accelerator()\nopt = SGD(model)\n" + text), Options())
        accelerator = work.objects.identity(work.script.module, "acc")
        assert len(work.objects.optimizers(accelerator)) == number


def test_attempts_are_followed_through_functions_and_parameters():
    text = """\
def one(opt, loss):
    loss.backward()
    opt.step()


def main(loader):
    accelerator = Accelerator()
    optimizer = accelerator.prepare(SGD())
    for batch in loader:
        with accelerator.accumulate():
            one(optimizer, batch)
        if accelerator.sync_gradients:
            count()
"""
    work = Work(Source(text), Options())
    block = next(block for block in work.blocks if block.role is Role.BOOKKEEPING)
    (path,) = block.state.paths
    assert [site.who.key for site in path.steps] == ["optimizer"]


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Accelerator(gradient_accumulation_steps=2)\nacc.accumulate(m)", "maybe"),
        ("Accelerator(gradient_accumulation_steps=1)\nacc.accumulate(m)", "one"),
        ("Accelerator()\nacc.accumulate(m)", "one"),
        ("Accelerator(**kwargs)\nacc.accumulate(m)", "maybe"),
        ("Accelerator(gradient_accumulation_steps=4)", "none"),
        ("acc.accumulate(m)", "maybe"),
    ],
)
def test_accumulation_is_read_from_the_constructor_and_the_use(text, answer):
    assert Work(Source(f"acc = {text}\n" if text[0] == "A" else f"{text}\n"), Options()).objects.accumulation == answer


def window(body, block):
    work = read(body + STEP + "if accelerator.sync_gradients:\n" + textwrap.indent(block, "    "))
    found = next(item for item in work.blocks if item.role is Role.BOOKKEEPING)
    return work.windows.read(found.statements, found.node)


@pytest.mark.parametrize(
    ("grows", "clears"),
    [
        ("loss_sum += loss", "loss_sum = 0.0"),
        ("loss_sum = loss_sum + loss", "loss_sum = 0"),
        ("losses.append(loss)", "losses = []"),
        ("losses.append(loss)", "losses.clear()"),
        ("losses.extend([loss])", "del losses[:]"),
        ("logs['loss'] += loss", "logs['loss'] = 0.0"),
        ("logs['loss'] += loss", "logs = {'loss': 0.0}"),
        ("logs[name] += loss", "logs = defaultdict(float)"),
        ("meter.update(loss)", "meter.reset()"),
        ("total += loss\nnum += 1", "total, num = 0.0, 0"),
        ("total += loss", "total = torch.zeros(1)"),
        ("total += loss", "total.zero_()"),
    ],
)
def test_what_a_batch_adds_to_and_the_block_clears_is_window_state(grows, clears):
    found = window(grows + "\n", f"global_step += 1\n{clears}")
    assert found.lines == [clears]
    assert found.refusal is None


@pytest.mark.parametrize(
    ("grows", "clears"),
    [
        ("loss = model(batch)", "loss = 0.0"),
        ("logs = {}\nlogs['a'] = 1", "logs = {}"),
        ("total = 0\ntotal += loss", "total = 0"),
        ("total += loss", "total = previous"),
        ("total += loss", "best = 0"),
    ],
)
def test_what_starts_afresh_or_is_not_cleared_is_none(grows, clears):
    assert window(grows + "\n", f"global_step += 1\n{clears}").lines == []


def test_a_sum_over_several_updates_is_told_from_one_of_a_window():
    found = window("total += loss\n", "global_step += 1\nif global_step % 9 == 0:\n    total = 0.0")
    assert (found.lines, found.kept) == ([], ["total"])


def test_meters_and_lists_that_know_their_length_need_no_help_over_several_updates():
    found = window("meter.update(loss)\n", "global_step += 1\nif global_step % 9 == 0:\n    meter.reset()")
    assert (found.lines, found.kept) == ([], [])


def test_a_statement_that_clears_and_does_something_else_is_refused():
    found = window("total += loss\n", "global_step += 1\ntotal, last = 0.0, global_step")
    assert found.refusal is not None
    assert found.refusal.code == "mixed-reset"


def test_gradients_and_data_belong_to_every_boundary():
    found = window("", "optimizer.zero_grad()\nglobal_step += 1\nnum_samples += 4")
    assert found.lines == ["optimizer.zero_grad()", "num_samples += 4"]
