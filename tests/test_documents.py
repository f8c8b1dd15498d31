"""Every output that a document shows is what its command prints today. UPDATE_DOCUMENTS=1 writes it anew."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

import accelerate_ext.cli
import tools.cli
from tools.codes import CODES

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")])
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NAMED = re.compile(r"(?<![\w.-])(python -m tools|accelerate-ext-tools|accelerate-ext)((?: +[^\s`#|<>]+)+)")
TARGET = re.compile(r"^    make ([\w -]+?)(?: *#.*)?$", re.MULTILINE)
LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)(?:#[^)]*)?\)")
ENVIRONMENT = os.environ | {
    "PYTHONPATH": str(ROOT),
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "COLUMNS": "100",
}
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


@pytest.mark.processes
@pytest.mark.xdist_group("documents")
@pytest.mark.parametrize("document", DOCUMENTS, ids=[path.stem for path in DOCUMENTS])
def test_shown_outputs_are_what_the_commands_print(document: Path, tmp_path: Path) -> None:
    for name in ("accelerate_ext", "docs", "patches", "tests", "tools"):
        (tmp_path / name).symlink_to(ROOT / name)
    text = document.read_text(encoding="utf-8")
    printed = BLOCK.sub(lambda match: f"```console\n{run_block(match.group(1), tmp_path)}```", text)
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
