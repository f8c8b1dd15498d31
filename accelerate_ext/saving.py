"""`save_state` that leaves a whole checkpoint or none."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from accelerate import Accelerator

from .attempts import Attempts
from .averages import Averages, write_states
from .checkpoint import StoredCounts, counts_from_states, warn_about_missing
from .deepspeed import counts_of_engine, engine_of
from .staging import Staging, finish_interrupted


def save_whole(accelerator: Accelerator, output_dir: str | None, save: Callable[[str], Any]) -> Path:
    """Let `save` write a checkpoint to a temporary folder, and put it in its place. Every process must call it.

    Raises: ValueError if no folder is named and automatic naming is off, or if an automatic name is taken.
    """
    target, beside = _target(accelerator, output_dir)
    staging = Staging(target, beside)
    accelerator.wait_for_everyone()  # all have looked at the target before anything changes
    _on_each_file_system(accelerator, staging.begin, is_due=lambda: not staging.path.is_dir())
    try:
        with _explicit_naming(accelerator):
            save(str(staging.path))
    except Exception:
        if accelerator.is_local_main_process:
            staging.discard()
        raise
    accelerator.wait_for_everyone()
    _on_each_file_system(accelerator, staging.commit, is_due=staging.path.is_dir)
    if beside is not None and accelerator.is_main_process:
        _drop_oldest(target, accelerator.project_configuration.total_limit)
    return target


def _on_each_file_system(accelerator: Accelerator, action: Callable[[], None], is_due: Callable[[], bool]) -> None:
    """On the main process, then on each node that does not see what the main process did."""
    if accelerator.is_main_process:
        action()
    accelerator.wait_for_everyone()
    if accelerator.is_local_main_process and not accelerator.is_main_process and is_due():
        action()
    accelerator.wait_for_everyone()


def _target(accelerator: Accelerator, output_dir: str | None) -> tuple[Path, Path | None]:
    configuration = accelerator.project_configuration
    if not configuration.automatic_checkpoint_naming:
        if output_dir is None:
            raise ValueError("`output_dir` must name a folder when `automatic_checkpoint_naming` is off, got None")
        target = Path(output_dir).expanduser()
        if target.exists() and not target.is_dir():
            raise NotADirectoryError(f"`output_dir` must name a folder, but {target} is a file")
        return target, None
    if accelerator.project_dir is None:
        raise ValueError("`project_dir` must name a folder when `automatic_checkpoint_naming` is on, got None")
    project = Path(accelerator.project_dir)
    target = project / "checkpoints" / f"checkpoint_{accelerator.save_iteration}"
    if target.exists():
        raise ValueError(
            f"{target} must not exist yet: set `accelerator.project_configuration.iteration` to a number above those "
            "of the checkpoints that are there"
        )
    return target, project


@contextmanager
def _explicit_naming(accelerator: Accelerator) -> Iterator[None]:
    configuration = accelerator.project_configuration
    was = configuration.automatic_checkpoint_naming
    configuration.automatic_checkpoint_naming = False
    try:
        yield
    finally:
        configuration.automatic_checkpoint_naming = was


def _drop_oldest(saved: Path, total_limit: int | None) -> None:
    """Keep `total_limit` checkpoints, the one that is saved and the newest others; only now, when it is complete."""
    if total_limit is None:
        return
    others = [
        (int(match[1]), path)
        for path in saved.parent.iterdir()
        if path != saved and (match := re.fullmatch(r"checkpoint_(\d+)", path.name))
    ]
    for _, path in sorted(others)[: max(len(others) + 1 - max(total_limit, 1), 0)]:
        shutil.rmtree(path)


def finish_saving(accelerator: Accelerator, input_dir: str) -> None:
    """Bring a save into this folder to its end that was interrupted when it was complete."""
    if accelerator.is_local_main_process:
        finish_interrupted(Path(input_dir).expanduser())
    accelerator.wait_for_everyone()


class CountsInCheckpoints:
    """Puts the counts and the registered averages into checkpoints, by the hooks that Accelerate has for it."""

    def __init__(self, accelerator: Accelerator, attempts: Attempts) -> None:
        self.averages = Averages()
        self._accelerator = accelerator
        self._attempts = attempts
        self._stored: StoredCounts | None = None
        self._folder = Path()
        self._handles = [
            accelerator.register_save_state_pre_hook(self._save),
            accelerator.register_load_state_pre_hook(self._read),
        ]

    def unhook(self) -> None:
        for handle in self._handles:
            handle.remove()

    def _save(self, models: object, weights: object, output_dir: str) -> None:
        stored = StoredCounts(self._attempts.state_dict(), [o.counts() for o in self._attempts.optimizers()])
        states = self.averages.states()
        on_each_node = self._accelerator.project_configuration.save_on_each_node
        if self._accelerator.is_local_main_process if on_each_node else self._accelerator.is_main_process:
            write_states(Path(output_dir), states)
            stored.write(Path(output_dir))

    def _read(self, models: object, input_dir: str) -> None:
        self._folder = Path(input_dir)
        self._stored = StoredCounts.read(self._folder)
        self.averages.check(self._folder)

    def restore(self) -> None:
        """Behind `load_state`: put the counts in force, and load the averages."""
        stored, self._stored = self._stored, None
        optimizers = self._attempts.optimizers()
        engine = engine_of(self._accelerator)
        if engine is not None:
            stored = counts_of_engine(engine, stored, len(optimizers))
        elif stored is None:
            stored = counts_from_states(optimizers)
            warn_about_missing(str(self._folder), stored)
        self._attempts.restart(stored.attempts)
        unlisted = counts_from_states(optimizers[len(stored.optimizers) :]).optimizers
        for optimizer, counts in zip(optimizers, [*stored.optimizers, *unlisted], strict=False):  # it may list more
            optimizer.restart(counts)
        self.averages.load(self._folder)
