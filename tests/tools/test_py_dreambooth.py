"""Three real scripts of the Diffusers shape, from the package index, come out right."""

from __future__ import annotations

import ast

import pytest

from tools import catalog
from tools.generate import generate, open_source, prove
from tools.patch import Change
from tools.rewrite import rewrite
from tools.scripts import extend
from tools.site import Outcome

pytestmark = pytest.mark.network


@pytest.fixture(scope="module")
def made():
    with open_source(catalog.find("py_dreambooth")) as tree:
        made = generate(catalog.find("py_dreambooth"), tree)
        prove(made)
        return made


@pytest.fixture(scope="module")
def changes(made) -> dict[str, Change]:
    return {path: change for patch in made.series.patches for path, change in patch.changes.items()}


def test_all_three_change_and_nothing_is_refused(made, changes):
    assert sorted(path.rsplit("/", 1)[1] for path in changes) == [
        "train_sd_dreambooth.py",
        "train_sd_dreambooth_lora.py",
        "train_sdxl_dreambooth_lora.py",
    ]
    assert not made.series.refused


def test_only_the_test_of_the_block_with_the_counter_changes(changes):
    for change in changes.values():
        before, after = change.before.split(b"\n"), change.after.split(b"\n")
        assert len(before) == len(after)
        ((old, new),) = [pair for pair in zip(before, after, strict=True) if pair[0] != pair[1]]
        assert old.strip() == b"if accelerator.sync_gradients:"
        assert new == old[:-1] + b" and not accelerator.optimizer_step_was_skipped:"


def test_the_gated_block_is_the_one_that_moves_the_counter_and_clips_nothing(changes):
    for change in changes.values():
        gated = [
            ast.unparse(node)
            for node in ast.walk(ast.parse(change.after))
            if isinstance(node, ast.If) and "optimizer_step_was_skipped" in ast.unparse(node.test)
        ]
        assert len(gated) == 1
        assert "global_step += 1" in gated[0]
        assert "clip_grad_norm_" not in gated[0]


def test_a_second_time_there_is_nothing_to_do(changes):
    for change in changes.values():
        extended = extend(change.after)
        for written in (change.after, extended.after):
            again = rewrite(written)
            assert again.before == again.after
            assert {site.outcome for site in again.sites} <= {Outcome.RIGHT, Outcome.LEFT}
