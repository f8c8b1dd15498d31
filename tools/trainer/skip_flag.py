"""The patch for Accelerate: `step_was_skipped` is right when the optimizer applies the loss scale itself.

What: the wrapped `step` keeps what the scaler leaves in `optimizer.found_inf`, and the property makes a bool of it. A
`step()` that only accumulates resets the flag.
Why: the scaler always calls an optimizer that applies the scale (fused AdamW and others), and its kernel drops the
update: that the step was called says nothing then. The tensor is read when the flag is first asked for, so `step()`
itself waits for no device.
Refuses: an `AcceleratedOptimizer` that learns about a skip in another way than from a wrapped `step`.
"""

from __future__ import annotations

import ast

from ..source import Edit
from .shape import after, before, find, method, only
from .step import Placed, Read, Step

OPTIMIZER = "src/accelerate/optimizer.py"

CALLED = """
if not self._accelerate_step_called:
    self._is_overflow = True
else:
    self._is_overflow = False
"""

FOUND = """
# An optimizer that applies the loss scale is called even if it drops the update: the scaler tells it so
{wrapper}._is_overflow = getattr({wrapper}.optimizer, "found_inf", False)
"""

ACCUMULATES = """
else:
    self._is_overflow = False
"""


def _step(read: Read) -> ast.FunctionDef:
    return method(read(OPTIMIZER), "AcceleratedOptimizer", "step")


def _called(read: Read) -> Placed:
    source, scope = read(OPTIMIZER), _step(read)
    test = find(scope, CALLED, "`AcceleratedOptimizer.step`")
    start, end = (source.next_line(body[-1].end_lineno) for body in (test.body, test.orelse))
    return Placed(OPTIMIZER, Edit(start, end, ""), "flag of a step that was called")


def _accumulates(read: Read) -> Placed:
    test = find(_step(read), "if self.gradient_state.sync_gradients: ...", "`AcceleratedOptimizer.step`")
    return Placed(OPTIMIZER, after(read(OPTIMIZER), test, ACCUMULATES), "step that only accumulates")


def _found(read: Read) -> Placed:
    source = read(OPTIMIZER)
    functions = [node for node in source.tree.body if isinstance(node, ast.FunctionDef)]
    patcher = only(
        [node for node in functions if node.name == "patch_optimizer_step"], "wrapper of `step`", "the module"
    )
    called = find(patcher, "ANY._accelerate_step_called = True", "`patch_optimizer_step`")
    wrapper = source.segment(called.targets[0].value)
    return Placed(OPTIMIZER, after(source, called, FOUND.format(wrapper=wrapper)), "what the scaler found")


def _property(read: Read) -> Placed:
    source = read(OPTIMIZER)
    scope = method(source, "AcceleratedOptimizer", "step_was_skipped")
    answer = find(scope, "return self._is_overflow", "`step_was_skipped`")
    text = "self._is_overflow = bool(self._is_overflow)  # may still be on the device\n"
    return Placed(OPTIMIZER, before(source, answer, text), "flag")


STEP = Step(
    name="skip-flag-of-fused-optimizers",
    subject="Report skipped steps of optimizers that apply the loss scale",
    body="""\
GradScaler always calls an optimizer that applies the loss scale itself,
such as a fused AdamW: its kernel drops the update when a gradient is
infinite or NaN. step_was_skipped only looked whether the step had been
called and was False then, so the scheduler was stepped and training
loops counted updates that did not happen.

While it steps, the scaler leaves what it found in optimizer.found_inf.
Keep that tensor and read it when the flag is first asked for: no step
waits for the device, and scales that grow in the same update, stand at
their floor or belong to two optimizers make no difference.

A step that only accumulates resets the flag: it skipped nothing.""",
    places=(_called, _accumulates, _found, _property),
)
