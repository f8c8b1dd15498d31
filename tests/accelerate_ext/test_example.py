"""The example runs, and the numbers in its docstring are the numbers that it prints."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "custom_loop.py"
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.processes
@pytest.mark.xdist_group("imports")
def test_the_numbers_shown_are_the_numbers_it_prints():
    result = subprocess.run(
        [sys.executable, str(EXAMPLE)],
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    docstring = ast.get_docstring(ast.parse(EXAMPLE.read_text()))
    shown = textwrap.dedent(docstring.split("prints:\n\n")[1]).strip("\n")
    assert result.stdout == shown + "\n"
