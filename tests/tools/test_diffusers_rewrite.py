"""The rewriter on the real Diffusers examples: every guard is told apart, every idiom comes out right."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tools.rewrite import rewrite
from tools.site import Outcome

CHECKOUT = os.environ.get("DIFFUSERS_CHECKOUT", "")
BASE = "58eb52c0803ea9af3abec60841c2a093bdf1f951"
GATE = "if accelerator.sync_gradients and not accelerator.optimizer_step_was_skipped:"
pytestmark = [
    pytest.mark.skipif(not CHECKOUT, reason="DIFFUSERS_CHECKOUT names no checkout of Diffusers"),
    pytest.mark.xdist_group("diffusers"),
]


@pytest.fixture(scope="module")
def results():
    """Every example at the pinned base, rewritten; read from the commit and never from the work tree."""
    listing = subprocess.run(
        ["git", "ls-tree", "-r", "--name-only", BASE, "examples"],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=True,
    )
    names = [name for name in listing.stdout.splitlines() if name.endswith(".py")]
    batch = "".join(f"{BASE}:{name}\n" for name in names).encode()
    blobs = subprocess.run(["git", "cat-file", "--batch"], cwd=CHECKOUT, input=batch, capture_output=True, check=True)
    found, data = {}, blobs.stdout
    for name in names:
        head, _, data = data.partition(b"\n")
        size = int(head.split()[-1])
        found[name.removeprefix("examples/")] = rewrite(data[:size])
        data = data[size + 1 :]
    return found


def changed(result):
    """Lines that went in and lines that came out, without those that both have."""
    import difflib

    lines = difflib.ndiff(result.before.decode().splitlines(), result.after.decode().splitlines())
    pairs = [line for line in lines if line[:1] in "+-"]
    return [line[2:].strip() for line in pairs if line[0] == "-"], [
        line[2:].strip() for line in pairs if line[0] == "+"
    ]


def codes(result):
    return {site.code for site in result.sites}


def test_the_184_guards_are_told_apart(results):
    kinds = Counter(
        site.kind
        for result in results.values()
        for site in result.sites
        if site.code not in ("reset-added", "never-reset")
    )
    assert len(results) == 298
    assert kinds["clip guard"] == 86
    assert kinds["clip and step guard"] == 2
    assert kinds["bookkeeping block"] == 94  # 93, and the second one of vqgan
    assert kinds["gradient-norm log"] == 2


def test_all_are_rewritten_but_two_whose_optimizer_was_never_prepared(results):
    refused = [
        (name, site.code)
        for name, result in results.items()
        for site in result.sites
        if site.outcome is Outcome.REFUSED
    ]
    assert refused == [("community/imagic_stable_diffusion.py", "unprepared-optimizer")] * 2


def test_no_line_that_clips_changes(results):
    for result in results.values():
        removed, added = changed(result)
        assert not any("clip_grad" in line for line in (*removed, *added))


def test_the_loss_is_reset_in_22_files(results):
    with_reset = [name for name, result in results.items() if "reset-added" in codes(result)]
    assert len(with_reset) == 22
    for name in with_reset:
        _, added = changed(results[name])
        assert added[:1] == [GATE]
        assert "elif accelerator.sync_gradients:" in added
        assert "train_loss = 0.0" in added


@pytest.mark.parametrize(
    "name",
    [
        "dreambooth/train_dreambooth_lora.py",
        "controlnet/train_controlnet.py",
        "instruct_pix2pix/train_instruct_pix2pix.py",
        "amused/train_amused.py",
        "discrete_diffusion/train_llada2.py",
        "textual_inversion/textual_inversion.py",
        "cogvideo/train_cogvideox_lora.py",
        "unconditional_image_generation/train_unconditional.py",
        "research_projects/lpl/train_sdxl_lpl.py",
    ],
)
def test_the_test_alone_changes(results, name):
    removed, added = changed(results[name])
    assert removed == ["if accelerator.sync_gradients:"]
    assert [line for line in added if line not in ("elif accelerator.sync_gradients:", "train_loss = 0.0")] == [GATE]


def test_a_loss_that_is_never_reset_is_reported_and_gets_no_reset(results):
    result = results["research_projects/lpl/train_sdxl_lpl.py"]
    assert "never-reset" in codes(result)
    assert b"elif accelerator.sync_gradients" not in result.after


def test_fast_forwards_are_left_in_14_files(results):
    assert sum("fast-forward" in codes(result) for result in results.values()) == 14


@pytest.mark.parametrize(
    ("name", "optimizers"),
    [
        ("research_projects/autoencoderkl/train_autoencoderkl.py", ("optimizer", "disc_optimizer")),
        ("research_projects/sana/train_sana_sprint_diffusers.py", ("optimizer_G", "optimizer_D")),
        ("vqgan/train_vqgan.py", ("optimizer", "discr_optimizer")),
    ],
)
def test_the_flag_of_the_optimizer_that_stepped_counts(results, name, optimizers):
    removed, added = changed(results[name])
    for optimizer in optimizers:
        assert f"step_was_skipped = {optimizer}.step_was_skipped" in added
    assert "if accelerator.sync_gradients and not step_was_skipped:" in added
    assert removed[0] == "if accelerator.sync_gradients:"


def test_vqgan_asks_whether_a_multiple_was_crossed(results):
    _, added = changed(results["vqgan/train_vqgan.py"])
    assert added.count("last_global_step = global_step") == 2
    for name in ("log_steps", "checkpointing_steps", "validation_steps"):
        assert f"if global_step // args.{name} > last_global_step // args.{name}:" in added
    assert "and not discr_optimizer.step_was_skipped" in added


@pytest.mark.parametrize("name", ["faceid", "ip-adapter", "plus", "sdxl"])
def test_counters_without_a_guard_get_one(results, name):
    _, added = changed(results[f"research_projects/ip_adapter/tutorial_train_{name}.py"])
    assert added[0] == GATE
    assert added[1] == "global_step += 1"


def test_a_scheduler_that_was_not_prepared_is_gated(results):
    _, added = changed(results["research_projects/realfill/train_realfill.py"])
    assert "if not (accelerator.sync_gradients and accelerator.optimizer_step_was_skipped):" in added
    assert GATE in added


@pytest.mark.parametrize(
    "name", ["custom_diffusion/train_custom_diffusion.py", "instruct_pix2pix/train_instruct_pix2pix_sdxl.py"]
)
def test_validation_outside_the_block_does_not_run_again(results, name):
    _, added = changed(results[name])
    assert added.count("and not accelerator.optimizer_step_was_skipped") == 1
    assert "and global_step % args.validation_steps == 0" in added


def test_a_second_run_changes_nothing_and_all_compile(results):
    for name, result in results.items():
        if result.after != result.before:
            compile(result.after, name, "exec")
            assert rewrite(result.after).after == result.after, name


@pytest.mark.processes
def test_upstreams_linter_finds_nothing_new(results, tmp_path):
    """With the ruff of this environment and upstream's rules; the pinned 0.9.10 is run by the series' own tests."""
    config = subprocess.run(["git", "show", f"{BASE}:pyproject.toml"], cwd=CHECKOUT, capture_output=True, check=True)
    found = {}
    for side in ("before", "after"):
        root = tmp_path / side
        for name, result in results.items():
            if result.before != result.after:
                path = root / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(getattr(result, side))
        (root / "pyproject.toml").write_bytes(config.stdout)
        outputs = []
        for command in (["check", "--output-format", "concise"], ["format", "--check"]):
            ruff = [sys.executable, "-m", "ruff", *command, "--no-cache", "."]
            done = subprocess.run(ruff, cwd=root, capture_output=True, text=True, check=False)
            outputs.append(sorted(line.split(":")[0] + line.rpartition(": ")[2] for line in done.stdout.splitlines()))
        found[side] = outputs
    assert found["before"] == found["after"]
    assert Path(tmp_path / "after").exists()
