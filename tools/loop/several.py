"""Windows of several updates: which of them can be put back to what they were before a skipped update."""

from __future__ import annotations

import ast
import re

from . import names
from .gathering import is_empty
from .names import key
from .obstacles import Refusal
from .scope import Scope
from .script import Script
from .tree import assigned, within

_TIME = re.compile(r"time|speed|throughput|elapsed|duration", re.IGNORECASE)


def is_list(script: Script, scope: Scope, name: str) -> bool:
    """Whether a key is set to nothing by `[]` or `list()` and by nothing else, here or in another method."""
    nodes = dict.fromkeys([*within(scope.node.body), *(item.statement for item in script.bindings(scope, name))])
    found = [value for node in nodes for target, value in assigned(node) if key(target) == name]
    started = [value for value in found if is_empty(value)]
    return bool(started) and all(map(_is_empty_list, started))


def _is_empty_list(value: ast.expr) -> bool:
    if isinstance(value, ast.Call):
        return names.called(value) == "list" and not value.args
    return isinstance(value, ast.List) and not value.elts


def measures_time(name: str) -> bool:
    """Whether a meter holds times, to which a skipped update belongs like any other."""
    return _TIME.search(names.last(name)) is not None


def no_way_back(name: str) -> Refusal:
    """Why a block stays as it is that clears a meter, or an item, every N updates."""
    return Refusal(
        "window-of-updates",
        f"`{name}` gathers over several updates and cannot be put back to what it was before a skipped one; gather in "
        "a sum and a count of your own, or in a list that is set to `[]` in front of the loop",
    )


def emptied_by_name(scope: Scope, node: ast.stmt) -> dict[str, str]:
    """Keys that a statement sets to a name that holds nothing (`total = zero`), each with that name."""
    found = {}
    for target, value in assigned(node):
        name = key(target)
        held = [item.value for item in scope.bindings.get(value.id, ())] if isinstance(value, ast.Name) else []
        if name is not None and held and all(item is not None and is_empty(item) for item in held):
            found[name] = ast.unparse(value)
    return found


def set_to_name(scope: Scope, node: ast.stmt, gathered: set[str]) -> Refusal | None:
    """Why a sum that is set to a name that holds nothing is not cleared at skipped boundaries."""
    for name, value in emptied_by_name(scope, node).items():
        if name in gathered:
            return Refusal(
                "mixed-reset",
                f"line {node.lineno} clears `{name}` by the name `{value}`, which may have another value, or none, at "
                f"a skipped update; write the value itself there, like `{name} = 0.0`",
            )
    return None
