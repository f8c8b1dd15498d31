"""Where optimizers take turns, the flag of the one that stepped is kept for the test below.

What: two optimizers on one accelerator that step in different arms (a generator and a discriminator), and one block
of bookkeeping for both.

Why: `accelerator.optimizer_step_was_skipped` is true when the last attempt of *any* optimizer was skipped. One
overflow of the discriminator would hide every update of the generator until the discriminator steps again.

Before:

    if generator_step:
        optimizer.step()
    else:
        disc_optimizer.step()
    if accelerator.sync_gradients:
        global_step += 1

After:

    if generator_step:
        optimizer.step()
        step_was_skipped = optimizer.step_was_skipped
    else:
        disc_optimizer.step()
        step_was_skipped = disc_optimizer.step_was_skipped
    if accelerator.sync_gradients and not step_was_skipped:
        global_step += 1

Where the test itself says whose turn it was, the flag of that optimizer is asked directly.

Refuses: nothing of its own; the rules that gate a block decide which flag it needs.
"""

from __future__ import annotations

from functools import partial

from ..work import Work

_KIND = "optimizer step"


def keep_own_flag(work: Work) -> None:
    """Keep the flags that gated places need behind the steps that set them."""
    for site in work.kept_flags:
        line = f"{work.flags.variable} = {site.owner}.step_was_skipped"
        if work.edit(site.statement, _KIND, partial(work.layout.insert_after, site.statement, line)):
            work.rewritten(site.statement, _KIND, "own-flag", f"the flag of `{site.owner}` is kept for the test below")
