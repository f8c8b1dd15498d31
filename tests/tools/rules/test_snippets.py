"""Short loops with what must become of each: the report, then the changed lines. `snippets/*.txt` holds them.

A snippet has a title (`## ...`), options (`@name value`), the statements of a loop's body, a line `=>` and the
outcome. With `@whole` the text is a file of its own. UPDATE_OUTCOMES=1 writes the outcomes anew: read the difference
that this makes as you would read a patch.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from tools.rewrite import Options, Rewrite, rewrite
from tools.site import Outcome

FILES = sorted((Path(__file__).parent / "snippets").glob("*.txt"))
OPTION = re.compile(r"^@(whole|counted|prepared|accumulation|follow)\b *(.*)\n", re.MULTILINE)
FOLLOW = {"": None, "yes": True, "no": False}


@dataclass
class Snippet:
    """One section of a file; `source` is what stands above the arrow."""

    title: str
    source: str
    wanted: str

    @property
    def options(self) -> dict[str, str]:
        return dict(OPTION.findall(self.source))

    @property
    def body(self) -> str:
        return OPTION.sub("", self.source)


def read(path: Path) -> list[Snippet]:
    found = []
    for part in re.split(r"^## ", path.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        title, _, rest = part.partition("\n")
        source, _, wanted = rest.partition("=>\n")
        found.append(Snippet(title, source.rstrip("\n") + "\n", wanted.rstrip("\n") + "\n"))
    return found


def record(path: Path, title: str, told: str) -> None:
    if "PYTEST_XDIST_WORKER" in os.environ:
        pytest.fail("UPDATE_OUTCOMES writes each file many times, which two processes must not do: run it without -n")
    parts = [Snippet(item.title, item.source, told if item.title == title else item.wanted) for item in read(path)]
    path.write_text("\n".join(f"## {item.title}\n{item.source}=>\n{item.wanted}" for item in parts), encoding="utf-8")


def refused(result: Rewrite) -> Counter[str]:
    return Counter(site.code for site in result.sites if site.outcome is Outcome.REFUSED)


SNIPPETS = [(path, item) for path in FILES for item in read(path)]


@pytest.mark.parametrize(("path", "snippet"), SNIPPETS, ids=[f"{path.stem}: {item.title}" for path, item in SNIPPETS])
def test_the_outcome_is_the_recorded_one(path, snippet, make_loop, outcome):
    options = snippet.options
    accumulation = options.get("accumulation", "gradient_accumulation_steps=args.steps")
    loop = make_loop(accumulation, options.get("prepared", "optimizer"), "")
    text = snippet.body if "whole" in options else loop.source(snippet.body)
    choices = Options(options.get("counted"), FOLLOW[options.get("follow", "")])
    result = rewrite(text.encode(), choices)
    compile(result.after, "snippet", "exec")
    again = rewrite(result.after, choices)
    assert again.after == result.after
    assert refused(again) <= refused(result)
    if os.environ.get("UPDATE_OUTCOMES"):
        record(path, snippet.title, outcome(result))
    else:
        assert outcome(result) == snippet.wanted


def test_no_file_is_empty():
    assert FILES
    assert [path.name for path in FILES if not read(path)] == []


def test_no_title_comes_twice():
    titles = [(path, item.title) for path, item in SNIPPETS]
    assert len(titles) == len(set(titles))
