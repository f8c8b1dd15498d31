"""The committed patches: their form, and that releases still give the very same bytes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jsonschema
import pytest
from click.testing import CliRunner

from tools import catalog, report
from tools import series as store
from tools.check import State, check
from tools.cli import main
from tools.generate import open_source

FOLDERS = sorted(path.parent for path in catalog.patches_folder().rglob(store.ORDER))
SCHEMA = json.loads((Path(report.__file__).parent / "schemas" / "report.schema.json").read_text())


def test_every_series_of_the_catalogue_is_committed():
    wanted = {
        store.folder_of(catalog.patches_folder(), row.name, row.base, name)
        for row in catalog.load().values()
        if row.is_committed
        for name in row.series
    }
    assert set(FOLDERS) == wanted


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: "-".join(folder.parts[-3::2]))
class TestForm:
    def test_nothing_is_wrong_and_no_line_of_context_is_there(self, folder):
        assert store.lint(store.read(folder), context=0) == []

    def test_the_report_is_valid(self, folder):
        jsonschema.validate(json.loads((folder / store.REPORT).read_text()), SCHEMA)

    def test_notes_and_report_quote_no_line_that_is_removed(self, folder):
        files = store.read(folder)
        quoted = [line for line in store.removed_lines(files) if len(line) > 30]
        words = files[store.NOTES].decode() + files[store.REPORT].decode()
        assert [line for line in quoted if line in words] == []


@pytest.mark.network
@pytest.mark.parametrize("name", ["transformers", "accelerate"])
def test_a_release_gives_the_committed_bytes(name):
    row = catalog.find(name)
    with open_source(row) as tree:
        verdicts = check(row, tree, catalog.patches_folder())
    assert {verdict.file: verdict.message for verdict in verdicts if verdict.state is not State.CURRENT} == {}
    assert verdicts


@pytest.mark.network
@pytest.mark.usefixtures("identity")
@pytest.mark.parametrize("name", ["transformers", "accelerate"])
def test_a_checkout_of_a_release_takes_both_forms_and_gets_the_same_tree(name, repo):
    row = catalog.find(name)
    with open_source(row) as tree:
        base = repo.commit(
            {path: tree.read(path) for path in tree.paths(f"src/{name}/*.py", f"src/{name}/utils/*.py")}
        )
    folder = store.folder_of(catalog.patches_folder(), name, row.base, name)
    files = store.read(folder)
    for patch in store.order(files):
        repo.git("apply", "--index", "--unidiff-zero", "-", stdin=files[patch])
    committed = repo.git("write-tree").strip()
    repo.git("reset", "--quiet", "--hard")
    result = CliRunner().invoke(main, ["apply", name, "--to", str(repo.root)])
    assert result.exit_code == 0, result.output
    assert repo.git("rev-parse", "HEAD^{tree}").strip() == committed
    subjects = repo.git("log", "--reverse", "--format=%s", f"{base}..HEAD").splitlines()
    assert [f"Subject: {subject}" for subject in subjects] == [
        re.sub(r"\[PATCH[^]]*\] ", "", line)
        for patch in store.order(files)
        for line in files[patch].decode().splitlines()
        if line.startswith("Subject: ")
    ]
    again = CliRunner().invoke(main, ["apply", name, "--to", str(repo.root), "--branch", "again"])
    assert (again.exit_code, "nothing to do" in again.stdout) == (0, True)
