"""Every output that a document shows is what its command prints today. UPDATE_DOCUMENTS=1 writes it anew."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import click
import pytest
import torch

import accelerate_ext
import accelerate_ext.cli
import tools.catalog
import tools.cli
from accelerate_ext.ema import PostHocEMA, plan
from tools.codes import CODES
from tools.generate import generate, open_source

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")])
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHELL = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"(?<=\n\n)(?: {4}.*\n)+")
NAMED = re.compile(r"(?<![\w.-])(?<!\.\./)(python -m tools|accelerate-ext-tools|accelerate-ext)((?: +[^\s`#|<>]+)+)")
TARGET = re.compile(r"^    make ([\w -]+?)(?: *#.*)?$", re.MULTILINE)
LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)(?:#[^)]*)?\)")
ENVIRONMENT = os.environ | {
    "PYTHONPATH": str(ROOT),
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "COLUMNS": "100",
}
IDENTITY = {
    "GIT_AUTHOR_NAME": "a",
    "GIT_AUTHOR_EMAIL": "a@example.invalid",
    "GIT_COMMITTER_NAME": "c",
    "GIT_COMMITTER_EMAIL": "c@example.invalid",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
}
CHECKOUT = os.environ.get("DIFFUSERS_CHECKOUT", "")
PROGRAMS = {"python": [sys.executable], "accelerate-ext": [sys.executable, "-m", "accelerate_ext.cli"]}


def output_of(command: str, folder: Path) -> str:
    """What a shown command writes to stdout, run in a folder that looks like the repository."""
    program, *arguments = shlex.split(command)
    run = subprocess.run(
        [*PROGRAMS[program], *arguments], cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert run.returncode in (0, 1), f"{command} ended with {run.returncode}:\n{run.stderr[-3000:]}"
    return run.stdout


def run_block(block: str, folder: Path) -> str:
    """The block as it should read: each command, and below it what it prints."""
    commands = [line[2:] for line in block.splitlines() if line.startswith("$ ")]
    return "".join(f"$ {command}\n{output_of(command, folder)}" for command in commands)


def shell(document: str, words: str) -> str:
    """The one block of shell commands, fenced or indented, that has these words in it."""
    text = (ROOT / document).read_text(encoding="utf-8")
    blocks = SHELL.findall(text) + [textwrap.dedent(block) for block in INDENTED.findall(text)]
    (found,) = [block for block in blocks if words in block]
    return found


def bash(script: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs shell commands as a user does, in a folder that looks like the repository."""
    programs = [f'{name}() {{ {shlex.join(words)} "$@"; }}' for name, words in PROGRAMS.items()]
    command = ["bash", "-o", "pipefail", "-e", "-c", "\n".join([*programs, script])]
    settings = {**ENVIRONMENT, **IDENTITY, **environment}
    return subprocess.run(command, cwd=folder, env=settings, capture_output=True, text=True, check=False)


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A folder that looks like the repository, for what is written while a command runs."""
    folder = tmp_path / "here"
    folder.mkdir()
    for name in ("accelerate_ext", "docs", "patches", "tests", "tools"):
        (folder / name).symlink_to(ROOT / name)
    return folder


@pytest.mark.processes
@pytest.mark.xdist_group("documents")
@pytest.mark.parametrize("document", DOCUMENTS, ids=[path.stem for path in DOCUMENTS])
def test_shown_outputs_are_what_the_commands_print(document: Path, here: Path) -> None:
    text = document.read_text(encoding="utf-8")
    printed = BLOCK.sub(lambda match: f"```console\n{run_block(match.group(1), here)}```", text)
    if os.environ.get("UPDATE_DOCUMENTS"):
        document.write_text(printed, encoding="utf-8")
    else:
        assert printed == text


@pytest.mark.parametrize("document", DOCUMENTS, ids=[path.stem for path in DOCUMENTS])
def test_links_lead_somewhere(document: Path) -> None:
    links = LINK.findall(document.read_text(encoding="utf-8"))
    assert [link for link in links if not (document.parent / link).exists()] == []


def slugs(document: Path) -> set[str]:
    """The anchors of a document's headings."""
    headings = re.findall(r"^#+ (.*)$", document.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=[path.stem for path in DOCUMENTS])
def test_links_into_a_document_lead_to_a_heading(document: Path) -> None:
    links = re.findall(r"\]\(((?!https?:)[^)#]*)#([^)]+)\)", document.read_text(encoding="utf-8"))
    wrong = [(name, slug) for name, slug in links if slug not in slugs(document.parent / name if name else document)]
    assert wrong == []


def test_every_document_can_be_reached_from_the_readme() -> None:
    reached, wanted = set(), [ROOT / "README.md"]
    while wanted:
        document = wanted.pop()
        if document not in reached and document.suffix == ".md":
            reached.add(document)
            links = LINK.findall(document.read_text(encoding="utf-8"))
            wanted += [(document.parent / link).resolve() for link in links]
    assert [document.name for document in DOCUMENTS if document not in reached] == []


@pytest.mark.processes
@pytest.mark.xdist_group("documents")
def test_the_figures_are_those_that_are_made_and_each_is_shown(tmp_path: Path) -> None:
    figures = ROOT / "docs" / "figures.py"
    run = subprocess.run(
        [sys.executable, figures, tmp_path], env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr[-3000:]
    made = sorted(path.name for path in tmp_path.iterdir() if path.read_bytes().startswith(b"\x89PNG"))
    assert made == sorted(path.name for path in (ROOT / "docs" / "images").iterdir())
    links = [link for document in DOCUMENTS for link in LINK.findall(document.read_text(encoding="utf-8"))]
    assert sorted({Path(link).name for link in links if link.endswith(".png")}) == made


def parse(group: click.Command, words: list[str]) -> None:
    """Raises: click.UsageError if there is no such verb or option."""
    context = click.Context(group, info_name="documents")
    while isinstance(group, click.Group) and words and not words[0].startswith("-"):
        name, *words = words
        command = group.get_command(context, name)
        if command is None:
            raise click.UsageError(f"no such command: {name}")
        group, context = command, click.Context(command, context, info_name=name)
    if not isinstance(group, click.Group):
        group.make_parser(context).parse_args([word for word in words if word != "--help"])


@pytest.mark.parametrize("document", DOCUMENTS, ids=[path.stem for path in DOCUMENTS])
def test_every_command_that_is_named_is_there_with_its_options(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    for program, words in NAMED.findall(text):
        try:
            parse(accelerate_ext.cli.cli if program == "accelerate-ext" else tools.cli.main, shlex.split(words))
        except click.UsageError as error:
            pytest.fail(f"{program}{words}: {error.format_message()}")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    wanted = {name for targets in TARGET.findall(text) for name in targets.split()}
    assert {name for name in wanted if not re.search(rf"^{name}:", makefile, re.MULTILINE)} == set()


def test_the_commands_that_are_named_are_found() -> None:
    documents = "".join(document.read_text(encoding="utf-8") for document in DOCUMENTS)
    assert len(NAMED.findall(documents)) > 25
    assert len(TARGET.findall(documents)) > 8
    for words in ("nonsense", "report --nonsense x.py"):
        with pytest.raises(click.UsageError):
            parse(tools.cli.main, words.split())


def test_the_table_of_codes_is_that_of_the_tools() -> None:
    document = ROOT / "docs" / "rewriter.md"
    rows = "\n".join(f"| `{code}` | {meaning} |" for code, meaning in CODES.items())
    table = f"<!-- codes -->\n| code | meaning |\n|---|---|\n{rows}\n<!-- end of codes -->"
    text = document.read_text(encoding="utf-8")
    wanted = re.sub(r"<!-- codes -->.*<!-- end of codes -->", lambda match: table, text, flags=re.DOTALL)
    if os.environ.get("UPDATE_DOCUMENTS"):
        document.write_text(wanted, encoding="utf-8")
    else:
        assert wanted == text


def test_every_benchmark_is_in_the_table() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), re.MULTILINE)
    programs = [path for path in (ROOT / "benchmarks").glob("*.py") if "__main__" in path.read_text(encoding="utf-8")]
    assert sorted(rows) == sorted(path.stem for path in programs)


def test_the_readme_shows_every_kind_of_command() -> None:
    blocks = "".join(BLOCK.findall((ROOT / "README.md").read_text(encoding="utf-8")))
    for command in ("tools rewrite", "tools overflow", "python docs/examples", "accelerate-ext ema"):
        assert command in blocks


def python(document: str, words: str) -> str:
    """The one block of Python that has these words in it."""
    blocks = re.findall(
        r"^```python\n(.*?)^```$", (ROOT / document).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    (found,) = [block for block in blocks if words in block]
    return found


class Loop:
    """A run on five batches in windows of two, with the scaler that the page on custom loops gives a CPU."""

    def __init__(self, overflows: set[int]) -> None:
        names: dict[str, Any] = {"torch": torch, "Accelerator": accelerate_ext.Accelerator}
        block = python("docs/custom-loops.md", "GradScaler")
        exec(block.replace("steps=4", "steps=2"), names)
        self.accelerator = names["accelerator"]
        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        loader = torch.utils.data.DataLoader(torch.arange(1.0, 6.0).unsqueeze(1), batch_size=1)
        self.model, self.optimizer, self.loader = self.accelerator.prepare(model, optimizer, loader)
        self.overflows = overflows
        self.seen: list[int] = []

    def train_on(self, batch: torch.Tensor) -> None:
        with self.accelerator.attempt(self.model):
            self.accelerator.backward(
                self.model(batch).sum() * (float("inf") if batch.item() in self.overflows else 1)
            )
            self.optimizer.step()
            self.optimizer.zero_grad()
        self.seen.append(int(batch.item()))


def test_the_page_on_custom_loops_gives_a_cpu_a_scaler_and_resumes_where_the_run_was(tmp_path: Path) -> None:
    torch.manual_seed(0)
    first = Loop({2})
    for batch in list(first.loader)[:4]:
        first.train_on(batch)
    assert (first.accelerator.attempted_step, first.accelerator.applied_step) == (2, 1)
    first.accelerator.save_state(str(tmp_path / "state"))
    second = Loop(set())
    names = {
        "accelerator": second.accelerator,
        "folder": str(tmp_path / "state"),
        "loader": second.loader,
        "max_applied_steps": 5,
        "train_on": second.train_on,
        "updates_per_epoch": 3,
    }
    exec(python("docs/custom-loops.md", "load_state(folder)"), names)
    assert names["epoch"] == 1
    assert second.seen == [5, 1, 2, 3, 4, 5]
    assert (second.accelerator.attempted_step, second.accelerator.applied_step) == (6, 5)


@pytest.mark.filterwarnings("ignore::accelerate_ext.ema.ReconstructionWarning")
def test_the_page_on_averages_measures_a_metric_over_widths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 3, bias=False)
    model.tied = model.weight
    ema = PostHocEMA(model, plan=plan(200, 16), directory="run/ema")
    for step in range(1, 201):
        with torch.no_grad():
            model.weight.add_(0.01 * torch.randn(3, 3))
        ema.update(step)
    names = {"ema": ema, "model": model, "evaluate": lambda model: (model.weight.detach() - 0.1).pow(2).mean().item()}
    exec(python("docs/averages.md", "averaged_weights()"), names)
    own = names["evaluate"](model)
    assert names["loss"] != own
    exec(python("docs/averages.md", "held_out_loss"), names)
    measured = [point.value for point in names["found"].points]
    assert len(set(measured)) == 5
    assert names["value"] <= min(measured)
    (tmp_path / "evaluate.py").write_text(
        "import sys\nprint(sys.argv[1:])\nprint(len(sys.argv[3]))\n", encoding="utf-8"
    )
    swept = bash(shell("docs/averages.md", "ema sweep").replace("sweep.json", "other.json"), tmp_path)
    assert swept.returncode == 0, swept.stderr
    assert (tmp_path / "sweep.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.network
@pytest.mark.processes
@pytest.mark.xdist_group("documents")
def test_the_page_on_the_trainer_patches_both_installed_releases(here: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    for name in ("accelerate", "transformers"):
        package = importlib.metadata.distribution(name)
        for folder in (Path(str(package.locate_file(name))), Path(str(package.locate_file("."))) / dist_info(package)):
            shutil.copytree(folder, site / folder.name, ignore=shutil.ignore_patterns("__pycache__"))
    run = bash(shell("docs/trainer.md", "for package in"), here, PYTHONPATH=str(site))
    assert run.returncode == 0, run.stdout + run.stderr
    for name in ("accelerate", "transformers"):
        row = tools.catalog.find(name)
        with open_source(row, None, importlib.metadata.version(name)) as tree:
            made = generate(row, tree)
        wanted = {path: change.after for patch in made.series.patches for path, change in patch.changes.items()}
        assert len(wanted) == {"accelerate": 1, "transformers": 4}[name]
        for path, after in wanted.items():
            assert (site / path.removeprefix("src/")).read_bytes() == after


@pytest.mark.processes
@pytest.mark.xdist_group("documents")
def test_the_page_on_pull_requests_shows_a_trainer_before_and_after(here: Path, tmp_path: Path) -> None:
    for name in ("accelerate", "transformers"):
        package = Path(str(importlib.metadata.distribution(name).locate_file(name)))
        shutil.copytree(package, tmp_path / name / "src" / name, ignore=shutil.ignore_patterns("__pycache__"))
        done = bash("git init --quiet && git add --all && git commit --quiet --message=all", tmp_path / name)
        assert done.returncode == 0, done.stderr
    run = bash(shell("docs/upstream-pr.md", "--compare-path"), here, HOME=str(tmp_path))
    assert run.returncode == 0, run.stdout + run.stderr
    rows = [re.findall(r"[\w,]+(?: [\w,]+)*", line) for line in run.stdout.splitlines() if line.startswith("| ")]
    assert [row[:3] for row in rows[1:]] == [
        ["finite", "6", "6"],
        ["overflow at attempt 4", "6", "5"],
        ["overflow at attempt 4, patched", "7", "6"],
    ]


def dist_info(package: importlib.metadata.Distribution) -> str:
    """The name of the folder with what pip knows of a package."""
    (name,) = {str(path).split("/")[0] for path in package.files or () if path.name == "METADATA"}
    return name


@pytest.mark.skipif(not CHECKOUT, reason="DIFFUSERS_CHECKOUT names no checkout of Diffusers")
@pytest.mark.processes
@pytest.mark.xdist_group("diffusers")
class TestForks:
    """The commands for forks of Diffusers, on clones of it in a home folder of their own."""

    BASE = tools.catalog.find("diffusers").base
    PILOT = "examples/text_to_image/train_text_to_image.py"

    @pytest.fixture
    def home(self, tmp_path: Path) -> Path:
        for name in ("diffusers", "my-fork"):
            clone = f'git clone --quiet --shared --no-checkout "{Path(CHECKOUT).resolve()}" {name}'
            done = bash(f"{clone} && git -C {name} checkout --quiet -B main {self.BASE}", tmp_path)
            assert done.returncode == 0, done.stderr
        return tmp_path

    def drift(self, fork: Path, old: str, new: str) -> None:
        """A commit that puts lines at the top of the pilot and changes a line of the others."""
        text = (fork / self.PILOT).read_text(encoding="utf-8")
        assert old in text
        (fork / self.PILOT).write_text("# one\n# two\n# three\n" + text.replace(old, new), encoding="utf-8")
        assert bash("git commit --quiet --all --message=drift", fork).returncode == 0

    def test_the_committed_patches_fit_the_pinned_commit(self, home: Path, here: Path) -> None:
        for document, words, series in (
            ("README.md", "pilot/*.patch", ["pilot"]),
            ("docs/fork.md", "cat-file", ["official"]),
        ):
            run = bash(shell(document, words), here, HOME=str(home))
            assert run.returncode == 0, run.stderr
            staged = bash("git diff --cached --raw --abbrev=40 && git reset --quiet --hard", home / "diffusers").stdout
            patches = [
                path for name in series for path in (ROOT / "patches/diffusers" / self.BASE / name).glob("*.patch")
            ]
            found = re.findall(r"index \w{40}\.\.(\w{40})", "".join(path.read_text("utf-8") for path in patches))
            assert sorted(line.split()[3] for line in staged.splitlines()) == sorted(found)

    @pytest.mark.parametrize(("document", "words"), [("README.md", "pilot/*.patch"), ("docs/fork.md", "cat-file")])
    def test_on_a_fork_that_moved_on_they_land_in_the_right_place_or_stop(
        self, home: Path, here: Path, document: str, words: str
    ) -> None:
        fork = home / "diffusers"
        self.drift(fork, "import accelerate\n", "import accelerate  # ours\n")
        run = bash(shell(document, words), here, HOME=str(home))
        assert run.returncode == 0, run.stderr
        merged = (fork / self.PILOT).read_text(encoding="utf-8")
        tail = merged[merged.index("elif accelerator.sync_gradients:\n") :].splitlines()
        assert [line.strip() for line in tail[1:3]] == ["train_loss = 0.0", ""]
        assert tail[3].startswith("            logs = ")
        compile(merged, self.PILOT, "exec")
        assert bash("git reset --quiet --hard", fork).returncode == 0
        self.drift(
            fork, "            if accelerator.sync_gradients:\n", "            if accelerator.sync_gradients and 1:\n"
        )
        run = bash(shell(document, words), here, HOME=str(home))
        assert run.returncode != 0
        assert "with conflicts" in run.stderr

    def test_a_clone_without_the_pinned_commit_is_left_alone(self, home: Path, here: Path) -> None:
        young = "rm -rf .git && git init --quiet && git add examples && git commit --quiet --message=all"
        assert bash(young, home / "diffusers").returncode == 0
        run = bash(shell("docs/fork.md", "cat-file"), here, HOME=str(home))
        assert run.returncode != 0
        assert bash("git status --porcelain --untracked-files=no", home / "diffusers").stdout == ""

    def test_mails_and_apply_lead_to_the_same_fork(self, home: Path, here: Path) -> None:
        fork = home / "my-fork"
        self.drift(fork, "import accelerate\n", "import accelerate  # ours\n")
        mails, apply = shell("docs/fork.md", "am -3"), shell("docs/fork.md", "tools apply")
        trees = []
        for commands in (mails, apply):
            run = bash(commands, here, HOME=str(home))
            assert run.returncode == 0, run.stdout + run.stderr
            trees.append(bash("git rev-parse HEAD^{tree} && git reset --quiet --hard HEAD", fork).stdout)
            branch = bash("git branch --show-current && git checkout --quiet -B main HEAD~55", fork).stdout.strip()
        assert branch == "applied-updates/official"
        assert trees[0] == trees[1]

    def test_every_commit_gets_the_name_of_who_sends_it(self, home: Path, here: Path) -> None:
        assert bash(shell("docs/fork.md", "tools apply"), here, HOME=str(home)).returncode == 0
        rebase = shell("docs/upstream-pr.md", "git rebase").replace("BASE", self.BASE)
        run = bash(rebase, home / "my-fork", GIT_AUTHOR_NAME="Me Myself")
        assert run.returncode == 0, run.stderr
        authors = bash(f"git log --format=%an {self.BASE}..HEAD", home / "my-fork").stdout.splitlines()
        assert authors == ["Me Myself"] * 55
