"""Which part of the tools may import which, and that no two need each other."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

TOOLS = Path(__file__).resolve().parents[2] / "tools"
DOORS = {
    "loop": {"source"},
    "rules": {"layout", "loop", "site", "source", "work"},
    "trainer": {"patch", "site", "source"},
    "upstreams": {"codes", "patch", "scripts", "site", "source", "trainer"},
    "overflow": {"errors", "loop", "options", "rewrite", "site", "source", "work"},
    "overflow.inside": set(),
}


def module_of(path: Path) -> str:
    parts = path.relative_to(TOOLS).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path): path for path in TOOLS.rglob("*.py") if path.parent.name != "scripts"}


def imported(name: str) -> Iterator[str]:
    """Modules of the tools that one imports, for its types only as well; as full names below `tools`."""
    path = MODULES[name]
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = [*package[: len(package) - node.level + 1], *(node.module or "").split(".")]
            for alias in node.names:
                found = [".".join(filter(None, parts)) for parts in ([*base, alias.name], base)]
                yield next((module for module in found if module in MODULES and module), "")


def circle(graph: dict[str, set[str]]) -> list[str]:
    """Modules that import each other, in a ring; [] if there are none."""
    done: set[str] = set()

    def follow(name: str, way: list[str]) -> list[str]:
        if name in way:
            return [*way[way.index(name) :], name]
        if name in done:
            return []
        for other in sorted(graph[name]):
            if found := follow(other, [*way, name]):
                return found
        done.add(name)
        return []

    return next((found for name in sorted(graph) if (found := follow(name, []))), [])


def test_no_module_needs_one_that_needs_it() -> None:
    graph = {name: {other for other in imported(name) if other and other != name} for name in MODULES}
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    assert sum(map(len, graph.values())) > 300, "this test does not see the imports"
    assert circle(graph) == []


@pytest.mark.parametrize("part", sorted(DOORS))
def test_a_part_goes_through_its_doors_only(part: str) -> None:
    inside = [name for name in MODULES if f"{name}.".startswith(f"{part}.")]
    inside = [name for name in inside if part == "overflow.inside" or not name.startswith("overflow.inside")]
    assert len(inside) > 2
    others = {(name, other) for name in inside for other in imported(name) if not f"{other}.".startswith(f"{part}.")}
    opened = {other.split(".")[0] for _, other in others}
    assert opened == DOORS[part], sorted(others)


def test_only_the_command_line_imports_the_command_line() -> None:
    users = {name for name in MODULES for other in imported(name) if other.split(".")[0] == "cli"}
    assert {name.split(".")[0] for name in users} == {"cli", "__main__"}


def test_what_runs_inside_a_script_needs_the_standard_library_only() -> None:
    names = set()
    for name, path in MODULES.items():
        if name.startswith("overflow.inside"):
            for node in ast.walk(ast.parse(path.read_bytes())):
                if isinstance(node, ast.Import):
                    names |= {alias.name.split(".")[0] for alias in node.names}
                elif isinstance(node, ast.ImportFrom) and not node.level:
                    names.add((node.module or "").split(".")[0])
    assert names
    assert names <= set(sys.stdlib_module_names)
