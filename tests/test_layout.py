"""Rules of the repository that hold between its parts."""

from __future__ import annotations

import ast
import configparser
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def imported_names(path: Path) -> Iterator[str]:
    """Absolute names of all that a file imports, wherever in the file the import stands."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.module or ""


def python_files(package: str) -> list[Path]:
    files = sorted((ROOT / package).rglob("*.py"))
    assert files, f"no Python files under {package}: this test looks in the wrong place"
    return files


def test_the_extension_does_not_import_the_tools() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in python_files("accelerate_ext")
        for name in imported_names(path)
        if name.split(".")[0] in {"tools", "libcst"}
    ]
    assert found == []


def test_the_tools_do_not_import_the_extension_or_themselves_by_name() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in python_files("tools")
        for name in imported_names(path)
        if name.split(".")[0] in {"accelerate_ext", "tools"}
    ]
    assert found == [], "tools uses relative imports, so that it can be installed under another name"


@pytest.mark.processes
def test_the_command_line_of_the_tools_loads_without_torch() -> None:
    code = "import sys, tools.cli; sys.exit('torch' in sys.modules or 'accelerate' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


@pytest.mark.processes
def test_importing_the_extension_patches_nothing() -> None:
    code = """
import accelerate, accelerate.optimizer, accelerate.scheduler, torch
watched = [accelerate.Accelerator, accelerate.optimizer.AcceleratedOptimizer, accelerate.scheduler.AcceleratedScheduler,
           torch.amp.GradScaler, torch.optim.Optimizer]
before = [dict(vars(cls)) for cls in watched]
import accelerate_ext, accelerate_ext.ema
assert [dict(vars(cls)) for cls in watched] == before
"""
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_committed_patches_carry_no_context_lines() -> None:
    found = []
    for path in sorted((ROOT / "patches").rglob("*.patch")):
        in_hunk = False
        for number, line in enumerate(path.read_bytes().split(b"\n"), 1):
            if line.startswith((b"diff --git ", b"-- ")) or line == b"--":
                in_hunk = False
            elif line.startswith(b"@@ "):
                in_hunk = True
            elif in_hunk and line[:1] not in (b"+", b"-", b"\\", b""):
                found.append(f"{path.relative_to(ROOT)}:{number}")
    assert found == []


def test_every_package_is_installed_and_none_is_called_tools() -> None:
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    listed = config["options"]["packages"].split()
    folders = {
        path.parent.relative_to(ROOT) for package in ("accelerate_ext", "tools") for path in python_files(package)
    }
    names = [".".join(folder.parts).replace("tools", "accelerate_ext_tools", 1) for folder in folders]
    assert sorted(listed) == sorted([*names, "accelerate_ext_tools.patches"])  # the catalogue of upstreams goes along
    assert all((folder / "__init__.py").is_file() for folder in (ROOT / name for name in folders))


def tracked_text() -> Iterator[tuple[str, str]]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True).stdout
    for name in filter(None, listed.decode().split("\0")):
        path = ROOT / name
        if path.suffix not in {".png", ".safetensors", ".pt"} and path.is_file():
            yield name, path.read_text(encoding="utf-8", errors="replace")


def test_no_path_of_a_developers_machine_is_committed() -> None:
    pattern = re.compile(r"(?<![\w.])/(?:work|root|opt|home/\w+)/[a-z]\w*")
    found = [
        f"{name}: {match.group()}"
        for name, text in tracked_text()
        if name != "tests/test_layout.py"
        for match in pattern.finditer(text)
    ]
    assert found == []
