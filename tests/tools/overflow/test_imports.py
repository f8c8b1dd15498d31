"""The hook that runs an action behind a module's own code."""

from __future__ import annotations

import importlib
import inspect
import sys
from pathlib import Path

import pytest

from tools.overflow.inside import imports


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package with one module, on sys.path, and the import system as it was afterwards."""
    folder = tmp_path / "watched_package"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "module.py").write_text("VALUE = 1\n\n\ndef read():\n    return VALUE\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    yield folder.name
    for name in [name for name in sys.modules if name.startswith(folder.name)]:
        del sys.modules[name]


def test_the_action_runs_once_behind_the_modules_own_code(package: str) -> None:
    seen = []
    imports.watch({f"{package}.module": lambda module: seen.append(module.VALUE)})
    module = importlib.import_module(f"{package}.module")
    importlib.import_module(f"{package}.module")
    assert seen == [1]
    assert inspect.getsource(module.read) == "def read():\n    return VALUE\n"


def test_the_action_runs_at_once_for_a_module_that_is_there(package: str) -> None:
    module = importlib.import_module(f"{package}.module")
    seen = []
    imports.watch({f"{package}.module": seen.append})
    assert seen == [module]


def test_a_watched_module_that_is_not_there_is_not_found_as_ever(package: str) -> None:
    imports.watch({f"{package}.missing": lambda module: pytest.fail("there is no module")})
    with pytest.raises(ModuleNotFoundError, match=rf"No module named '{package}\.missing'"):
        importlib.import_module(f"{package}.missing")
