"""Series of one patch a script: names, words and what becomes of scripts that stay."""

from __future__ import annotations

import pytest

from tools.checkout import GitTree
from tools.scripts import extend, gate, listed, moved, script_series, short_names
from tools.site import Outcome
from tools.upstreams.diffusers import BUDGET, GATE

SCRIPT = b"""\
from accelerate import Accelerator


def main(args, model, optimizer, loader, ema):
    accelerator = Accelerator()
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    global_step = 0
    for epoch in range(0, args.num_train_epochs):
        train_loss = 0.0
        for batch in loader:
            with accelerator.accumulate(model):
                loss = model(batch)
                train_loss += loss.item()
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                ema.step(model.parameters())
                global_step += 1
                accelerator.log({"train_loss": train_loss}, step=global_step)
                train_loss = 0.0
            if global_step >= args.max_train_steps:
                break
"""


@pytest.fixture
def tree(repo):
    """Scripts to change, to leave and to refuse."""
    repo.commit(
        {
            "a/train.py": SCRIPT,
            "b/train.py": SCRIPT.replace(b"ema.step", b"print"),
            "b/right.py": gate(SCRIPT).after,
            "b/nothing.py": b"x = 1\n",
            "b/broken.py": b"def f(:\n",
        }
    )
    with GitTree(repo.root, "HEAD", "") as tree:
        yield tree


def test_each_script_that_changes_is_a_patch_and_the_others_are_spoken_of(tree):
    series = script_series(tree, "s", GATE, [*tree.paths("**/*.py"), "gone.py"], "notes")
    assert [patch.name for patch in series.patches] == ["a-train", "b-train"]
    assert series.patches[0].subject.endswith(" in a/train.py")
    assert {path: sites[0].code for path, sites in series.refused.items()} == {
        "b/right.py": "applied",
        "b/broken.py": "unreadable",
        "gone.py": "missing-file",
    }
    assert series.refused["b/right.py"][0].outcome is Outcome.RIGHT


def test_the_message_speaks_of_what_this_script_moves(tree):
    one, two = script_series(tree, "s", GATE, ["a/train.py", "b/train.py"], "").patches
    assert "still moves EMA, `global_step` and the logged training loss." in one.body
    assert "still moves `global_step` and the logged training loss." in two.body
    assert "accumulated for a skipped update is dropped" in one.body


def test_the_budget_goes_on_top(tree):
    revision = extend(gate(SCRIPT).after)
    assert b"range(0, args.num_train_epochs + args.max_train_steps)" in revision.after
    assert (
        script_series(tree, "s", BUDGET, ["a/train.py"], "").refused["a/train.py"][0].code == "epoch-budget-needs-gate"
    )
    (patch,) = script_series(tree, "s", BUDGET, ["b/right.py"], "").patches
    assert patch.changes["b/right.py"].after == revision.after


def test_short_names_take_as_many_folders_as_they_need():
    names = short_names(["x/a/t.py", "y/a/t.py", "z/u.py", "t.py"])
    assert names == {"x/a/t.py": "x/a/t", "y/a/t.py": "y/a/t", "z/u.py": "u", "t.py": "t"}


def test_words_are_listed_as_in_a_sentence():
    assert [listed(words) for words in (["a"], ["a", "b"], ["a", "b", "c"])] == ["a", "a and b", "a, b and c"]


def test_only_what_follows_the_question_moves():
    revision = gate(SCRIPT)
    assert moved(revision) == ["EMA", "`global_step`", "the logged training loss"]
