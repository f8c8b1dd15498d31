"""No module imports one that needs it, not even within a function. Names that only type checkers see are no import."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import accelerate_ext

ROOT = Path(accelerate_ext.__file__).parent


def is_for_type_checkers(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def imports(node: ast.AST) -> Iterator[ast.ImportFrom]:
    for child in ast.iter_child_nodes(node):
        if is_for_type_checkers(child):
            continue
        if isinstance(child, ast.ImportFrom) and child.level:
            yield child
        yield from imports(child)


def needed_by(path: Path) -> set[Path]:
    needed = set()
    for found in imports(ast.parse(path.read_bytes())):
        folder = path.parents[found.level - 1]
        base = folder.joinpath(*(found.module or "").split(".")) if found.module else folder
        for name in found.names:
            places = (base / f"{name.name}.py", base.with_suffix(".py"), base / "__init__.py")
            needed.add(next(place for place in places if place.is_file()))
    return needed


def order_of(files: list[Path]) -> list[Path]:
    return list(TopologicalSorter({path: needed_by(path) for path in files}).static_order())


def test_no_module_imports_one_that_needs_it():
    files = sorted(ROOT.rglob("*.py"))
    assert len(files) > 50
    order = order_of(files)
    assert order.index(ROOT / "ledger.py") < order.index(ROOT / "optimizer.py") < order.index(ROOT / "accelerator.py")


def test_a_circle_would_be_found(tmp_path):
    (tmp_path / "a.py").write_text("def f():\n    from .b import g\n")
    (tmp_path / "b.py").write_text("from . import a\n")
    with pytest.raises(CycleError):
        order_of([tmp_path / "a.py", tmp_path / "b.py"])
    (tmp_path / "b.py").write_text("if TYPE_CHECKING:\n    from . import a\n")
    assert order_of([tmp_path / "a.py", tmp_path / "b.py"])[0] == tmp_path / "b.py"
