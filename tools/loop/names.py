"""What expressions are called: keys of names and attributes, and what a name says about the thing behind it."""

from __future__ import annotations

import ast
import re
from functools import lru_cache

_OPTIMIZER = re.compile(r"optim|^opt(_?[a-z0-9]{1,4})?$|^opt_|_opt\d?$", re.IGNORECASE)
_OPTIMIZER_CLASS = re.compile(
    r"optim|^(paged)?(adamw?|sgd|lion|lamb|lars|adafactor|adagrad|adadelta|adamax|nadam|radam|rmsprop|prodigy|came|sophia"
    r"|muon|shampoo|dadapt\w*|adam\w*|apollo\w*|galore\w*)(8bit|w)?$",
    re.IGNORECASE,
)
_SCHEDULER = re.compile(r"sched|(^|_)lr(_|$)|warmup", re.IGNORECASE)
_SCHEDULER_CLASS = re.compile(r"sched|LR$|WarmRestarts$", re.IGNORECASE)
_OPTIMIZER_WITH = re.compile(r"^Optim\w*(With|And)[A-Z]")  # an optimizer that steps its schedule itself
_EMA = re.compile(r"(^|_)(ema|swa)(_|\d|$)|^(ema|swa)|averaged?_model|(?-i:(?<=[a-z])EMA(?![A-Za-z]))", re.IGNORECASE)
_EMA_CLASS = re.compile(r"EMA(?![a-z])|^Ema|MovingAverage|AveragedModel|Averager", re.ASCII)
_BAR = re.compile(r"bar$|pbar|progress|tqdm", re.IGNORECASE)
_DATA = re.compile(r"micro|batch|sample|token|example|seen|consumed|attempt|epoch|skipp|data", re.IGNORECASE)
_COUNTER = re.compile(r"step|update|iter|(?<![a-z])count|seen|(^|_)(n_|num)", re.IGNORECASE)
_STEP_COUNT = re.compile(r"(^|_)(steps?|updates?|iters?|iterations?)$", re.IGNORECASE)
_MEASURE = re.compile(r"loss|time|per_|norm|reward|score|grad|lr", re.IGNORECASE)
_ACCELERATOR = re.compile(r"accelerator\d?$|^acc(el)?$", re.IGNORECASE)


def key(node: ast.AST | None) -> str | None:
    """The text that stands for a name, a dotted name or an item with a constant index; None for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        owner = key(node.value)
        return owner and f"{owner}.{node.attr}"
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        owner = key(node.value)
        return owner and f"{owner}[{node.slice.value!r}]"
    return None


def is_super(node: ast.AST | None) -> bool:
    """Whether an expression is the object as its base class sees it, as in `super().method()`."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super"


def root(name: str) -> str:
    """The first name of a key."""
    return name if name.isidentifier() else re.split(r"[.\[]", name, maxsplit=1)[0]


def last(name: str) -> str:
    """The last word of a key: what the thing itself is called."""
    if name.isidentifier():
        return name
    end = name.rpartition(".")[2]
    return end if end.isidentifier() else (re.findall(r"\w+", name) or [name])[-1]


def called(call: ast.Call) -> str:
    """The key of what a call calls; at least its last word, where that is a method of something without a key."""
    return key(call.func) or (call.func.attr if isinstance(call.func, ast.Attribute) else "")


def unwrapped(value: ast.expr) -> ast.expr:
    """What `accelerator.unwrap_model(model)` is about: the model; any other expression is about itself."""
    is_wrapped = isinstance(value, ast.Call) and last(called(value)) == "unwrap_model" and len(value.args) == 1
    return value.args[0] if is_wrapped and isinstance(value, ast.Call) else value


def class_of(value: ast.AST | None) -> str:
    """The name that a call calls (its last word), or an empty text."""
    if isinstance(value, ast.Call):
        name = key(value.func)
        if name:
            return last(name)
    return ""


@lru_cache(maxsize=4096)
def suggests_optimizer(name: str) -> bool:
    return bool(_OPTIMIZER.search(last(name))) and not suggests_scheduler(name)


@lru_cache(maxsize=4096)
def suggests_scheduler(name: str) -> bool:
    return bool(_SCHEDULER.search(last(name)))


@lru_cache(maxsize=4096)
def suggests_ema(name: str) -> bool:
    return bool(_EMA.search(last(name)))


@lru_cache(maxsize=4096)
def suggests_bar(name: str) -> bool:
    return bool(_BAR.search(last(name)))


@lru_cache(maxsize=4096)
def suggests_accelerator(name: str) -> bool:
    return bool(_ACCELERATOR.search(last(name)))


@lru_cache(maxsize=4096)
def counts_data(name: str) -> bool:
    """Whether a counter's name says that it counts data or attempts, not updates."""
    return bool(_DATA.search(last(name)))


@lru_cache(maxsize=4096)
def suggests_counter(name: str) -> bool:
    """Whether a name may be that of a counter of steps."""
    return bool(_COUNTER.search(last(name)))


@lru_cache(maxsize=4096)
def is_step_count(name: str) -> bool:
    """Whether a name says that it counts steps, and nothing else."""
    return bool(_STEP_COUNT.search(last(name))) and not _MEASURE.search(last(name)) and not counts_data(name)


def builds_optimizer(value: ast.AST | None) -> bool:
    name = class_of(value)
    return bool(_OPTIMIZER_CLASS.search(name)) and not _is_scheduler_class(name)


def builds_scheduler(value: ast.AST | None) -> bool:
    return _is_scheduler_class(class_of(value))


def _is_scheduler_class(name: str) -> bool:
    return bool(_SCHEDULER_CLASS.search(name)) and not _OPTIMIZER_WITH.search(name)


def brings_schedule(value: ast.AST | None) -> bool:
    """Whether a call makes an optimizer that steps its schedule itself, and so may prepare both."""
    return bool(_OPTIMIZER_WITH.search(class_of(value)))


def builds_ema(value: ast.AST | None) -> bool:
    return bool(_EMA_CLASS.search(class_of(value)))


def builds_accelerator(value: ast.AST | None) -> bool:
    return class_of(value) == "Accelerator"


def builds_bar(value: ast.AST | None) -> bool:
    return bool(_BAR.search(class_of(value)))


def word_pattern(name: str, not_behind: str = r"\w") -> str:
    """A pattern for a whole word. The name comes first: a search for letters is many times faster than one for \\b."""
    letters = re.escape(name)
    return rf"{letters}(?<!{not_behind}{letters})\b"
