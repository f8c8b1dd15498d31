"""Every case runs in a folder of its own, with nothing left of the logging of the case before."""

from __future__ import annotations

import logging

import pytest
import transformers


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    logger = logging.getLogger("transformers")
    before = list(logger.handlers)
    yield
    logger.handlers[:] = before


def pytest_report_header() -> str:
    return f"transformers {transformers.__version__} from {transformers.__file__}"
