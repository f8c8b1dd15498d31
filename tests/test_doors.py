"""Which part of the tools and of the extension may import which, and that no two modules need each other."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DOORS = {
    "tools/loop": {"source"},
    "tools/rules": {"layout", "loop", "site", "source", "work"},
    "tools/trainer": {"patch", "site", "source"},
    "tools/upstreams": {"codes", "patch", "scripts", "site", "source", "trainer"},
    "tools/overflow": {"errors", "loop", "options", "rewrite", "site", "source", "work"},
    "tools/overflow.inside": set(),
    "accelerate_ext/ema": {"arguments", "checkpoint", "staging"},
}


def modules_of(package: str) -> dict[str, Path]:
    """Full names below the package, and where they are."""
    found = {}
    for path in (ROOT / package).rglob("*.py"):
        parts = path.relative_to(ROOT / package).with_suffix("").parts
        if path.parent.name != "scripts":
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = {package: modules_of(package) for package in ("tools", "accelerate_ext")}


def imported(package: str, name: str) -> Iterator[str]:
    """Modules of the package that one imports, for its types only as well."""
    modules = MODULES[package]
    path = modules[name]
    own = name.split(".") if path.name == "__init__.py" and name else name.split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = [*own[: len(own) - node.level + 1], *(node.module or "").split(".")]
            for alias in node.names:
                found = [".".join(filter(None, parts)) for parts in ([*base, alias.name], base)]
                yield next((module for module in found if module in modules and module), "")


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


def test_a_circle_is_seen() -> None:
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]


@pytest.mark.parametrize(("package", "num_imports"), [("tools", 300), ("accelerate_ext", 150)])
def test_no_module_needs_one_that_needs_it(package: str, num_imports: int) -> None:
    graph = {
        name: {other for other in imported(package, name) if other not in ("", name)} for name in MODULES[package]
    }
    assert sum(map(len, graph.values())) > num_imports, "this test does not see the imports"
    assert circle(graph) == []


def part_of(module: str, package: str) -> str:
    """The smallest part with doors that holds a module."""
    parts = [part for part in DOORS if f"{package}/{module}.".startswith(f"{part}.")]
    return max(parts, key=len, default="")


@pytest.mark.parametrize("part", sorted(DOORS))
def test_a_part_goes_through_its_doors_only(part: str) -> None:
    package, name = part.split("/")
    inside = [module for module in MODULES[package] if part_of(module, package) == part]
    assert len(inside) > 2
    others = {(module, other) for module in inside for other in imported(package, module)}
    outside = {(module, other) for module, other in others if not f"{other}.".startswith(f"{name}.")}
    assert {other.split(".")[0] for _, other in outside} == DOORS[part], sorted(outside)


def users_of(package: str, part: str) -> set[str]:
    return {
        name.split(".")[0]
        for name in MODULES[package]
        for other in imported(package, name)
        if other.split(".")[0] == part
    }


def test_only_the_command_line_imports_the_command_line() -> None:
    assert users_of("tools", "cli") == {"cli", "__main__"}
    assert users_of("accelerate_ext", "cli") == set()


def test_counting_needs_no_averages_and_only_the_command_line_imports_them() -> None:
    assert users_of("accelerate_ext", "ema") == {"ema", "cli"}


def test_what_builds_averages_afterwards_needs_nothing_of_what_keeps_them_during_training() -> None:
    keeping = {"average", "clock", "evaluation", "parameters", "posthoc", "snapshot_folder", "snapshot_writer"}
    keeping |= {"state", "storage", "weighting"}
    names = {f"ema.{name}" for name in keeping}
    assert names <= MODULES["accelerate_ext"].keys()
    reached, new = set(), {"ema.check", "ema.plan", "ema.reconstruct", "ema.sweep", "ema.thin"}
    while new:
        reached |= new
        new = {other for name in new for other in imported("accelerate_ext", name) if other} - reached
    assert len(reached) > 15
    assert reached & names == set()


def test_what_runs_inside_a_script_needs_the_standard_library_only() -> None:
    names = set()
    for name, path in MODULES["tools"].items():
        if name.startswith("overflow.inside"):
            for node in ast.walk(ast.parse(path.read_bytes())):
                if isinstance(node, ast.Import):
                    names |= {alias.name.split(".")[0] for alias in node.names}
                elif isinstance(node, ast.ImportFrom) and not node.level:
                    names.add((node.module or "").split(".")[0])
    assert names
    assert names <= set(sys.stdlib_module_names)
