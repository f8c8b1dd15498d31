"""Each line of the patches that is broken on purpose is missed by some case of the suite.

By default those with `in_ci` are tried; with TRAINER_MUTANTS=all every one (about ten seconds each).
"""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

import pytest

from tools.trainer.released_copy import changed_files

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MUTANTS = tomllib.loads(Path(__file__).with_name("mutants.toml").read_text(encoding="utf-8"))["mutant"]
TRIED = [one for one in MUTANTS if one.get("in_ci") or os.environ.get("TRAINER_MUTANTS") == "all"]


@pytest.fixture
def broken_copy(series, copy_of):
    """The patched releases with one text put in the place of another."""

    def make(mutant: dict) -> Path:
        files = {name: changed_files(one) for name, one in series.items()}
        name = mutant["path"].split("/")[1]
        text = files[name][mutant["path"]].decode()
        assert text.count(mutant["old"]) == 1, "the text to be broken must stand in the patched file exactly once"
        files[name][mutant["path"]] = text.replace(mutant["old"], mutant["new"]).encode()
        return copy_of(**files)

    return make


def test_every_mutant_can_be_made(series):
    files = {path: data.decode() for one in series.values() for path, data in changed_files(one).items()}
    counts = {one["name"]: files[one["path"]].count(one["old"]) for one in MUTANTS}
    assert counts == dict.fromkeys(counts, 1)
    assert len(counts) == len(MUTANTS) >= 20


@pytest.mark.processes
@pytest.mark.parametrize("mutant", TRIED, ids=lambda one: one["name"])
def test_a_broken_patch_fails_the_suite(mutant, broken_copy, run_suite):
    cases = shlex.split(mutant["cases"])
    session = run_suite(broken_copy(mutant), *cases, "-x", "--tb=line", "--show-capture=no")
    assert session.having("failure") + session.having("error") != [], session.output
