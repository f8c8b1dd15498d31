"""Every case runs in a folder of its own, with nothing left of the logging of the case before."""

from __future__ import annotations

import logging

import accelerate
import pytest
import transformers


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    logger = logging.getLogger("transformers")
    before = list(logger.handlers)
    yield
    logger.handlers[:] = before


def pytest_terminal_summary(terminalreporter) -> None:
    for package in (transformers, accelerate):
        terminalreporter.write_line(f"{package.__name__} {package.__version__} from {package.__file__}")
