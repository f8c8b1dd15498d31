"""The Diffusers recipes on a repository of the same shape, with scripts of ours: which script goes into which series."""

from __future__ import annotations

import pytest

from tools import catalog
from tools import series as store
from tools.checkout import GitTree
from tools.generate import generate, prove
from tools.rewrite import rewrite
from tools.scripts import extend, gate
from tools.site import Outcome

ROW = catalog.find("diffusers")
SCRIPT = b"""\
from accelerate import Accelerator
from tqdm import tqdm


def main(args, model, optimizer, loader, ema):
    accelerator = Accelerator(gradient_accumulation_steps=2)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    global_step = 0
    first_epoch = 0
    progress_bar = tqdm(range(args.max_train_steps))
    for epoch in range(first_epoch, args.num_train_epochs):
        train_loss = 0.0
        for batch in loader:
            with accelerator.accumulate(model):
                loss = model(batch)
                train_loss += loss.item()
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                ema.step(model.parameters())
                progress_bar.update(1)
                global_step += 1
                accelerator.log({"train_loss": train_loss}, step=global_step)
                train_loss = 0.0
            if global_step >= args.max_train_steps:
                break
"""
UNPREPARED = SCRIPT.replace(
    b"model, optimizer, loader = accelerator.prepare(model, optimizer, loader)",
    b"optimizer = torch.optim.SGD(model.parameters(), 0.1)",
).replace(b"def main(args, model, optimizer, loader, ema)", b"def main(args, model, loader, ema)")
FILES = {
    "examples/text_to_image/train_text_to_image.py": SCRIPT,
    "examples/other/train_other.py": SCRIPT,
    "examples/other/nothing.py": b"x = 1\n",
    "examples/research_projects/one/train.py": SCRIPT,
    "examples/research_projects/two/train.py": SCRIPT,
    "examples/community/theirs.py": UNPREPARED,
    "src/diffusers/not_an_example.py": SCRIPT,
}


@pytest.fixture
def made(repo):
    """All four series of such a repository."""
    repo.commit(FILES)
    with GitTree(repo.root, "HEAD", "") as tree:
        made = {name: generate(ROW, tree, name) for name in ROW.series}
        for one in made.values():
            prove(one)
        return made


def names(made, series: str) -> list[str]:
    return [patch.name for patch in made[series].series.patches]


def test_each_script_goes_into_the_series_of_its_owners(made):
    assert names(made, "pilot") == ["train_text_to_image"]
    assert names(made, "official") == ["train_other", "train_text_to_image"]
    assert names(made, "research") == ["one-train", "two-train"]
    assert names(made, "budget") == ["train_other", "one-train", "two-train", "train_text_to_image"]


def test_what_is_refused_is_in_the_notes_of_the_series(made):
    notes = made["research"].rendered(context=0)[store.NOTES].decode()
    assert "`unprepared-optimizer`" in notes
    assert "Research projects and community scripts belong to their authors" in notes
    assert (
        "It stands on `official` and `research`: those come first."
        in made["budget"].rendered(context=0)[store.NOTES].decode()
    )


def test_the_budget_changes_the_loop_over_epochs_and_nothing_else(made):
    (patch,) = [patch for patch in made["budget"].series.patches if patch.name == "train_other"]
    change = patch.changes["examples/other/train_other.py"]
    assert b"not accelerator.optimizer_step_was_skipped" in change.before
    removed = set(change.before.split(b"\n")) - set(change.after.split(b"\n"))
    assert removed == {b"    for epoch in range(first_epoch, args.num_train_epochs):"}


def test_the_message_says_what_moves_and_what_is_dropped(made):
    (mail,) = made["pilot"].patches(context=3)
    text = b" ".join(mail.split(b"---\n")[0].split()).decode()
    assert "still moves EMA, `global_step`, the progress bar and the logged training loss." in text
    assert "text_to_image/train_text_to_image.py asks for a sync boundary only" in text
    assert "The loss that was accumulated for a skipped update is dropped" in text


def test_a_second_run_finds_all_of_it_right(made, repo):
    for mail in made["budget"].patches(context=3):
        repo.git("am", "--quiet", stdin=mail)
    with GitTree(repo.root, "HEAD", "") as tree:
        again = {name: generate(ROW, tree, name) for name in ROW.series}
    assert [names(again, name) for name in ROW.series] == [[], [], [], []]
    sites = again["budget"].series.refused["examples/other/train_other.py"]
    assert [site.code for site in sites] == ["epoch-budget-already"]


def test_a_report_on_the_output_of_a_series_finds_nothing_left_to_do(made):
    refused = [site.code for site in rewrite(UNPREPARED).sites if site.outcome is Outcome.REFUSED]
    assert refused
    for one in made.values():
        for part in one.chain:
            for patch in part.patches:
                for path, change in patch.changes.items():
                    again = rewrite(change.after)
                    assert again.after == change.after
                    found = {site.outcome for site in again.sites}
                    assert found <= {Outcome.RIGHT, Outcome.LEFT}, path


BUDGETED = SCRIPT.replace(
    b"    first_epoch = 0\n",
    b"    first_epoch = 0\n    args.num_train_epochs = math.ceil(args.max_train_steps / num_updates)\n",
)


@pytest.mark.parametrize("spell", ["args.num_train_epochs", "num_epochs"])
def test_a_budget_that_was_extended_is_not_said_to_end_short(spell):
    script = BUDGETED.replace(b"args.num_train_epochs", spell.encode())
    gated = gate(script).after
    budgets = [
        [(site.code, site.outcome, site.line) for site in rewrite(data).sites if site.kind == "epoch budget"]
        for data in (gated, extend(gated).after)
    ]
    assert budgets == [
        [("epoch-budget", Outcome.LEFT, 10)],
        [("epoch-budget-already", Outcome.RIGHT, 10)],
    ]


def test_a_budget_of_another_loop_is_still_said_to_end_short():
    other = BUDGETED.replace(b"def main", b"def other").replace(b"args.num_train_epochs", b"args.num_other_epochs")
    data = extend(gate(BUDGETED).after).after + gate(other).after
    found = [(site.code, site.line) for site in rewrite(data).sites if site.kind == "epoch budget"]
    assert [code for code, _ in found] == ["epoch-budget-already", "epoch-budget"]
