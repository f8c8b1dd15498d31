"""Everything that Python can say goes through the rewriter: real files by the thousand, and loops of any layout."""

import ast
import site
import textwrap
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tools.codes import CODES
from tools.compare import unaccounted
from tools.rewrite import is_relevant, rewrite
from tools.rules import RULES
from tools.source import Source, SourceError

CHUNKS = 8
FILES = sorted({path for root in site.getsitepackages() for path in Path(root).rglob("*.py")})


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_every_installed_file_goes_through(chunk, record_property):
    """Files that cannot hold a site are checked for syntax only; the others are read, edited and compared."""
    counts = {"files": 0, "read": 0, "rewritten": 0, "not Python here": 0}
    for path in FILES[chunk::CHUNKS]:
        data = path.read_bytes()
        counts["files"] += 1
        try:
            result = rewrite(data)
        except SourceError:
            counts["not Python here"] += 1
            with pytest.raises((SyntaxError, ValueError)):
                ast.parse(data)
            continue
        assert result.before == data
        assert {site.code for site in result.sites} <= set(CODES) - {"internal"}, path
        counts["read"] += is_relevant(Source.from_bytes(data).text)
        if result.after != data:
            counts["rewritten"] += 1
            assert rewrite(result.after).after == result.after, path
    for name, number in counts.items():
        record_property(name, number)
    print(f"chunk {chunk}: {counts}")
    assert counts["files"] > 0


def test_the_environment_holds_enough_to_be_worth_it():
    assert len(FILES) > 3000


NAMES = st.sampled_from(["step", "loss", "total", "global_step", "ema", "bar", "model"])
TESTS = st.sampled_from(
    [
        "acc.sync_gradients",
        "not acc.sync_gradients",
        "acc.sync_gradients and main",
        "main and (acc.sync_gradients)",
        "(acc.sync_gradients\n   and main)",
        "acc.sync_gradients or last",
        "(s := acc.sync_gradients)",
        "acc.sync_gradients and not acc.optimizer_step_was_skipped",
        "global_step % 3 == 0",
        "step % accum == 0",
        "main",
        "s",
    ]
)
SIMPLE = st.sampled_from(
    [
        "global_step += 1",
        "total += loss",
        "total = 0.0",
        "losses.append(loss)",
        "losses = []",
        "ema.step(model)",
        "bar.update(1)",
        "opt.step()",
        "opt.zero_grad()",
        "disc_opt.step()",
        "sched.step()",
        "acc.backward(loss)",
        "acc.clip_grad_norm_(model, 1.0)",
        "acc.log({'a': total}, step=global_step)",
        "acc.save_state(f'ckpt-{global_step}')",
        "s = acc.sync_gradients",
        "applied = acc.sync_gradients and not opt.step_was_skipped",
        "note = '''\n  text\n'''",
        "print(f'''\n{global_step}\n''')",
        "x = (1,\n  2)",
        "continue",
        "break",
        "return 1",
        "pass",
        "self.after(acc.sync_gradients)",
        "global_step += int(acc.sync_gradients)",
        "a = 1; b = 2",
        "global_step += 1; ema.step(model)",
    ]
)
COMMENTS = st.sampled_from(["", "", "", "  # a comment", "  # if acc.sync_gradients:", "  # ü"])


def indented(block):
    lines = ["    " + line for line in "\n".join(block).split("\n")]
    return "\n".join(lines)


def compound(children):
    block = st.lists(children, min_size=1, max_size=5).map(indented)
    header = st.one_of(
        TESTS.map(lambda test: f"if {test}:"),
        st.sampled_from(["with acc.accumulate(model):", "for i in range(3):", "while step < 3:", "try:"]),
    )
    tail = st.one_of(
        st.just(""), block.map("else:\n{}".format), st.tuples(TESTS, block).map(lambda x: f"elif {x[0]}:\n{x[1]}")
    )

    def join(parts):
        head, comment, body, rest = parts
        if head == "try:":
            return f"{head}{comment}\n{body}\nexcept ValueError:\n    pass"
        if not head.startswith("if") and rest.startswith("elif"):
            rest = ""
        if head.startswith("with"):
            rest = ""
        return f"{head}{comment}\n{body}" + (f"\n{rest}" if rest else "")

    return st.tuples(header, COMMENTS, block, tail).map(join)


STATEMENTS = st.recursive(st.tuples(SIMPLE, COMMENTS).map("".join), compound, max_leaves=14)
HEAD = """\
import torch
def main(loader, self, main, last, accum):
    acc = Accelerator({})
    model, opt, disc_opt = Model(), torch.optim.Adam(), torch.optim.Adam()
    sched = get_scheduler(opt)
    {}
    ema, bar, global_step, total, losses, s = EMA(model), tqdm(), 0, 0.0, [], False
    for step, loss in enumerate(loader):
"""


@st.composite
def loops(draw):
    """A training function with any statements in any nesting, in one of several layouts."""
    body = "\n".join(draw(st.lists(STATEMENTS, min_size=1, max_size=7)))
    accumulation = draw(st.sampled_from(["", "gradient_accumulation_steps=2"]))
    prepared = draw(st.sampled_from(["opt = acc.prepare(opt)", "opt, disc_opt = acc.prepare(opt, disc_opt)", "pass"]))
    text = HEAD.format(accumulation, prepared) + textwrap.indent(body, " " * 8) + "\n"
    unit = draw(st.sampled_from(["    ", "\t", "  "]))
    newline = draw(st.sampled_from(["\n", "\r\n", "\r"]))
    end = draw(st.booleans())
    return (text if end else text.rstrip("\n")).replace("    ", unit).replace("\n", newline)


@settings(max_examples=200, suppress_health_check=list(HealthCheck))
@given(loops())
def test_any_loop_is_rewritten_once_and_nothing_but_the_edits_changes(text):
    data = text.encode()
    try:
        ast.parse(text)
    except SyntaxError:
        with pytest.raises(SourceError):
            rewrite(data)
        return
    edits = []

    def spy(work):
        edits.extend(sorted(work.edits, key=lambda edit: (edit.start, edit.end)))

    result = rewrite(data, rules=(*RULES, spy))
    assert {site.code for site in result.sites} <= set(CODES) - {"internal"}
    if result.after != data:
        before, after = Source.from_bytes(data), Source.from_bytes(result.after)
        assert unaccounted(before, after, edits) == []
        assert before.edited(edits).text == after.text
        ast.parse(result.after)
    assert rewrite(result.after).after == result.after


SCHEDULER_BEFORE_A_COUNTER = """\
from accelerate import Accelerator

acc = Accelerator(gradient_accumulation_steps=2)
model, opt = Model(), torch.optim.Adam()
sched = get_scheduler(opt)
opt = acc.prepare(opt)
global_step = 0
for batch in loader:
    with acc.accumulate(model):
        opt.step()
        if global_step % 3 == 0:
            sched.step()
        with acc.accumulate(model):
            global_step += 1
            global_step += int(acc.sync_gradients)
"""


def test_a_gated_scheduler_is_no_place_where_updates_are_counted() -> None:
    """Else the counter that was refused would be taken for one of batches when the result is read again."""
    first = rewrite(SCHEDULER_BEFORE_A_COUNTER.encode())
    second = rewrite(first.after)
    assert b"optimizer_step_was_skipped" in first.after
    assert second.after == first.after
    assert [[site.code for site in result.sites if "counter" in site.kind] for result in (first, second)] == [
        ["counts-batches"],
        ["counts-batches"],
    ]
