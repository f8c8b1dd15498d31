"""The sums and buffers that an iteration adds to, itself or in the functions that it calls."""

from __future__ import annotations

import ast
import re

from . import names
from .calls import all_reached
from .gathering import cleared, container, gathers, reads
from .names import key
from .script import Script
from .tree import assigned, within

_OUTER = re.compile(r"nonlocal\s|global\s")


def gathered_in(
    script: Script, outer: list[ast.stmt], inside: set[int], wanted: set[str]
) -> tuple[set[str], set[str]]:
    """Keys that an iteration adds to outside a block, and those that it sets anew under a condition.

    What it starts afresh every time is neither. `inside` are the ids of the block's statements, `wanted` the keys that
    the block clears.
    """
    nodes = [node for node in within(outer) if id(node) not in inside]
    plain = [node for node in nodes if isinstance(node, (ast.Assign, ast.AnnAssign))]
    grown = {name for node in nodes if not isinstance(node, (ast.Assign, ast.AnnAssign)) for name in gathers(node)}
    grown |= _in_other_functions(script, outer[0]) | _in_calls(script, nodes)
    sought = {item for name in grown | wanted for item in (name, names.root(name))}
    fresh: set[str] = set()
    restarted: set[str] = set()
    replaced: set[str] = set()
    for node in plain:
        for target, value in assigned(node):
            name = key(target)
            if name is None:  # an item under a computed index comes to what the container holds
                replaced |= wanted & {container(target)}
            elif name in sought and reads(value, name):
                replaced.update(gathers(node))
            elif name in sought:
                (fresh if _runs_always(script, node, outer) else restarted).add(name)
    found = grown | replaced
    return {name for name in found if name not in fresh and names.root(name) not in fresh}, restarted


def _in_other_functions(script: Script, node: ast.stmt) -> set[str]:
    """Shared keys (attributes, names of an enclosing function) that other functions add to."""
    scope = script.places[node].scope
    found: set[str] = set()
    keeps_names = not script.lines_with(_OUTER)
    for other in script.scopes:
        if other is scope or not other.is_function:
            continue
        for inner in within(other.node.body):
            if keeps_names and _sets_own_name(inner):
                continue
            for name in gathers(inner):
                script.read(other)
                if script.home(other, name) is script.home(scope, name) is not other:
                    found.add(name)
    return found


def _sets_own_name(node: ast.stmt) -> bool:
    """Whether a statement sets a plain name, which is one of its function where no line says otherwise."""
    kind = type(node)
    if kind is ast.Assign:
        return len(node.targets) == 1 and type(node.targets[0]) is ast.Name  # type: ignore[attr-defined]
    return kind is ast.AugAssign and type(node.target) is ast.Name  # type: ignore[attr-defined]


def _in_calls(script: Script, nodes: list[ast.stmt]) -> set[str]:
    """Keys that called functions add to, those of objects too, in the names that the iteration has for them."""
    grown = (
        called.outside(name)
        for node in nodes
        for called in all_reached(script, node)
        for inner in called.statements
        for name in gathers(inner)
    )
    return {name for name in grown if name is not None}


def cleared_in_calls(script: Script, block: list[ast.stmt]) -> set[str]:
    """Keys that functions clear which a block calls, in the names that the block has for them."""
    found = (
        called.outside(name)
        for node in within(block)
        for called in all_reached(script, node)
        for inner in called.statements
        for name in cleared(inner, None)
    )
    return {name for name in found if name is not None}


def _runs_always(script: Script, node: ast.stmt, outer: list[ast.stmt]) -> bool:
    """Whether a statement runs in every iteration: nothing but `with` stands round it."""
    while isinstance(parent := script.places[node].parent, (ast.With, ast.AsyncWith)):
        node = parent
    return node in outer
