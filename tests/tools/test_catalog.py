"""The catalogue of upstreams says what it must, or says what is wrong with it."""

from __future__ import annotations

import re
from email.utils import parsedate_to_datetime

import pytest

from tools import catalog
from tools.errors import CannotRun

AUTHOR = '[author]\nname = "A"\nemail = "a@example.invalid"\n'
ROW = '[x]\nurl = "u"\nbase = "b"\nglobs = ["*.py"]\nseries = ["one", "two"]\n'


def written(tmp_path, text: str):
    path = tmp_path / "upstreams.toml"
    path.write_text(text)
    return path


def test_every_row_of_ours_has_recipes_for_the_series_it_names():
    for row in catalog.load().values():
        module_default, _ = row.recipe(None)
        assert module_default == row.series[0]
        for name in row.series:
            assert row.recipe(name)[0] == name


def test_every_release_of_ours_has_a_hash_and_a_date():
    for row in catalog.load().values():
        for release in row.releases.values():
            assert re.fullmatch(r"[0-9a-f]{64}", release.sha256)
            assert parsedate_to_datetime(release.date).tzinfo is not None
        if not row.is_release:
            assert re.fullmatch(r"[0-9a-f]{40}", row.base)


def test_a_row_is_read_as_it_stands(tmp_path):
    rows = catalog.load(written(tmp_path, AUTHOR + ROW + '[x.after]\ntwo = ["one"]\n'))
    assert rows["x"].author == "A <a@example.invalid>"
    assert rows["x"].chain("two") == ("one", "two")
    assert rows["x"].chain("one") == ("one",)
    assert rows["x"].checkout_variable == "X_CHECKOUT"
    assert not rows["x"].is_release


def test_all_faults_are_named_at_once(tmp_path):
    text = '[x]\nurl = "u"\n[y]\nbase = "1"\nglobs = ["*"]\nseries = ["a"]\n'
    with pytest.raises(CannotRun) as error:
        catalog.load(written(tmp_path, text))
    for fault in ("[author] lacks `name`", "[x] lacks `base`", "[x] lacks `series`", "[y] needs a `url`"):
        assert fault in str(error.value)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (AUTHOR + ROW + '[x.after]\ntwo = ["three"]\n', "after 'three', which it does not have"),
        (AUTHOR + ROW.replace("url", "distribution"), "needs a hash and a date for its base b"),
        ("[x", "must be a readable TOML file"),
    ],
)
def test_a_fault_is_named(tmp_path, text, fault):
    with pytest.raises(CannotRun, match=re.escape(fault)):
        catalog.load(written(tmp_path, text))


def test_an_installed_package_keeps_its_catalogue_inside_and_its_cache_with_the_user(tmp_path, monkeypatch):
    package = tmp_path / "lib" / "tools"
    (package / "patches").mkdir(parents=True)
    monkeypatch.setattr(catalog, "PACKAGE", package)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(CannotRun, match="must lie beside the tools or in their package"):
        catalog.patches_folder()
    (package / "patches" / "upstreams.toml").write_text(AUTHOR + ROW)
    assert list(catalog.load()) == ["x"]
    assert catalog.cache_folder() == tmp_path / "cache" / "accelerate-ext"


def test_a_checkout_keeps_its_cache_where_git_ignores_it():
    assert catalog.cache_folder() == catalog.PACKAGE.parent / ".cache"


def test_an_unknown_upstream_is_answered_with_those_there_are():
    with pytest.raises(CannotRun, match=r"one of diffusers, transformers, accelerate.*got 'torch'"):
        catalog.find("torch")
