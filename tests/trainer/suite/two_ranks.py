"""One of two processes of a Trainer run whose second rank overflows; writes what it saw to rankN.json."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from harness import train


def main() -> None:
    rank = int(os.environ["RANK"])
    optim, *overflow = sys.argv[1:]
    mine = {int(number) for number in overflow} if rank == 1 else set()
    run = train(
        16,
        max_steps=6,
        overflow=mine,
        optim=optim,
        save_strategy="steps",
        save_steps=2,
        ddp_backend="gloo",
    )
    report = {
        "step": run.state.global_step,
        "applied": run.applied,
        "attempts": len(run.attempts),
        "saved": run.recorder.saves,
        "weights": run.weights,
    }
    Path(f"rank{rank}.json").write_text(json.dumps(report))
    leave()


def leave() -> None:
    """Ends the process at once: a gloo thread that drops a tensor while the interpreter winds up aborts it, at times."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
