"""What has happened when a statement is reached: which blocks come behind the step, and which do not."""

import textwrap

import pytest

from tools.rewrite import rewrite

HEAD = """\
from accelerate import Accelerator


def main(model, optimizer, loader):
    accelerator = Accelerator(gradient_accumulation_steps=2)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    global_step = 0
    for batch in loader:
"""
STEP = """\
with accelerator.accumulate(model):
    accelerator.backward(model(batch))
    optimizer.step()
    optimizer.zero_grad()
"""
BLOCK = "if accelerator.sync_gradients:\n    global_step += 1\n"
GATED = BLOCK.replace(":\n", " and not accelerator.optimizer_step_was_skipped:\n")


def text(body, block):
    """A loop; PASS in its body stands for the block, STEP for the attempt."""
    lines = []
    for line in body.splitlines():
        indent = line[: len(line) - len(line.lstrip())]
        words = {"BLOCK": block, "STEP": STEP}.get(line.strip(), line.strip() + "\n")
        lines.append(textwrap.indent(words, " " * 8 + indent))
    return HEAD + "".join(lines)


def outcome(body):
    return rewrite(text(body, BLOCK).encode())


@pytest.mark.parametrize(
    "body",
    [
        "STEP\nBLOCK",
        "STEP\nwith timer:\n    BLOCK",
        "STEP\nfor x in xs:\n    pass\nelse:\n    BLOCK",
        "STEP\nwhile busy():\n    pass\nelse:\n    BLOCK",
        "STEP\nfor x in xs:\n    BLOCK",
        "STEP\ntry:\n    x()\nexcept E:\n    pass\nelse:\n    BLOCK",
        "STEP\ntry:\n    x()\nfinally:\n    BLOCK",
        "STEP\ntry:\n    x()\nexcept E:\n    BLOCK",
        "STEP\nmatch x:\n    case 1:\n        BLOCK",
        "try:\n    STEP\nfinally:\n    pass\nBLOCK",
        "try:\n    STEP\nexcept E:\n    raise\nBLOCK",
        "match batch.kind:\n    case 1:\n        STEP\n    case _:\n        STEP\nBLOCK",
        "if batch.is_last:\n    continue\nSTEP\nBLOCK",
        "kind = 1\nif batch.x:\n    kind = 2\nif kind == 1:\n    STEP\nelif kind == 2:\n    STEP\nBLOCK",
    ],
)
def test_a_block_behind_the_step_is_gated_wherever_it_stands(body):
    assert outcome(body).after.decode() == text(body, GATED)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("BLOCK\nSTEP", "before-step"),
        ("for x in xs:\n    STEP\nBLOCK", "step-in-inner-loop"),
        ("while busy():\n    STEP\nBLOCK", "step-in-inner-loop"),
        ("try:\n    STEP\nexcept E:\n    pass\nBLOCK", "conditional-step"),
        ("match batch.kind:\n    case 1:\n        STEP\nBLOCK", "conditional-step"),
        ("if batch.a:\n    STEP\nelif batch.b:\n    STEP\nBLOCK", "conditional-step"),
        ("if batch.a:\n    if batch.b:\n        STEP\nBLOCK", "conditional-step"),
        (
            "kind = 1\nif batch.x:\n    kind = 3\nif kind == 1:\n    STEP\nelif kind == 2:\n    STEP\nBLOCK",
            "conditional-step",
        ),
        (
            "kind = 1\nif batch.x:\n    kind = 2\nif batch.kind == 1:\n    STEP\nelif kind == 2:\n    STEP\nBLOCK",
            "conditional-step",
        ),
        (
            "kind = 1\nif batch.x:\n    kind = 2\nif kind == 1:\n    x()\nelse:\n    if kind == 2:\n"
            "        STEP\n    y()\nBLOCK",
            "conditional-step",
        ),
        ("STEP\nSTEP\nBLOCK", "several-attempts"),
        ("STEP\nfor x in xs:\n    STEP\nBLOCK", "step-in-inner-loop"),
    ],
)
def test_a_block_that_the_flag_says_nothing_about_is_left_and_told_of(body, code):
    result = outcome(body)
    assert result.after == result.before
    assert code in {site.code for site in result.sites}


def test_a_function_that_only_skipped_updates_reach_counts_no_applied_ones():
    function = "def missed():\n    global misses\n    if accelerator.sync_gradients:\n        misses += 1\n\n\n"
    body = "STEP\nif accelerator.optimizer_step_was_skipped:\n    missed()"
    whole = (
        text(body, "")
        .replace("def main", function + "def main")
        .replace("    accelerator = ", "    global accelerator\n    accelerator = ")
    )
    result = rewrite(whole.encode())
    assert result.after == result.before
    assert not {site.code for site in result.sites} & {"gated", "conditional-step"}
    always = rewrite(whole.replace("if accelerator.optimizer_step_was_skipped:", "if batch.x:").encode())
    assert always.after != always.before


def test_a_name_of_the_block_alone_is_no_late_one():
    body = "x(batch.norm)\nSTEP\nif accelerator.sync_gradients:\n    norm = y()\n    print(norm)\n    global_step += 1"
    assert [site.code for site in outcome(body).sites] == ["gated"]
    assert "late-name" in {site.code for site in outcome(body + "\nprint(norm)").sites}


def test_a_function_that_takes_one_batch_has_no_iteration_round_it():
    whole = text("STEP\nif accelerator.sync_gradients:\n    last = batch\n    global_step += 1\nprint(last)", "")
    whole = whole.replace("    for batch in loader:\n", "\n    def advance(batch):\n        nonlocal global_step\n")
    assert [site.code for site in rewrite(whole.encode()).sites] == ["gated"]


def test_a_function_inside_a_method_calls_the_others_through_self():
    whole = """\
from accelerate import Accelerator


class Run:
    def fit(self, loader):
        accelerator = Accelerator()
        optimizer = accelerator.prepare(SGD())

        def advance(batch):
            accelerator.backward(batch)
            optimizer.step()
            self.tick()

    def tick(self):
        self.global_step += 1
"""
    gated = "if not accelerator.optimizer_step_was_skipped:\n                self.tick()"
    assert rewrite(whole.encode()).after.decode() == whole.replace("self.tick()", gated)
