"""Files that are written and have no name yet: the disk is waited for in the background, then they get their names."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from ..staging import flush_folder
from . import distributed
from .stream_file import StreamFile

_UNTOLD: set[Publication] = set()
"""Those under way, and those whose error nobody was told yet."""


class Publication:
    """Brings files of one moment to the disk and then under their names; all of them or none.

    Starts at once, in a thread that the interpreter waits for before it ends. An error that nobody has asked for by
    then goes to `sys.excepthook`.

    Args:
        files: complete ones in one folder, which are not to be touched any more. Those of this process.
        is_shared: whether all processes have files of the same moment, so that an error of one takes all names back.
    """

    def __init__(self, files: Sequence[StreamFile], is_shared: bool = False):
        self._files, self._is_shared = files, is_shared
        self._named: list[Path] = []
        self._error: BaseException | None = None
        self._is_done, self._process = threading.Event(), os.getpid()
        _UNTOLD.add(self)
        threading.Thread(target=self._run, name="accelerate_ext.ema: waits for the disk").start()

    @property
    def has_failed(self) -> bool:
        """Whether the files of this process cannot be published, as far as it is known by now."""
        return self._error is not None

    def finish(self) -> None:
        """Wait until all files have their names. Where they are shared, every process must call this.

        Raises: what went wrong, here or in another process; none of the files is left then.
        """
        error = self.wait()
        _UNTOLD.discard(self)
        try:
            raise_on_all(error, self._is_shared)
        except BaseException:
            self._withdraw()
            raise

    def is_in(self, folder: Path) -> bool:
        """Whether the files belong into a folder."""
        return any(file.path.parent.resolve() == folder.resolve() for file in self._files)

    def wait(self) -> BaseException | None:
        """Wait for the files of this process. Returns the error, and leaves it to be told."""
        if os.getpid() == self._process:  # a fork has no such thread; the files are its parent's
            self._is_done.wait()  # `join` takes a thread for ended once Ctrl-C has interrupted it
        return self._error

    def _run(self) -> None:
        try:
            self._publish()
        except BaseException as error:
            self._error = error
        else:
            _UNTOLD.discard(self)
        self._is_done.set()

    def _publish(self) -> None:
        try:
            for file in self._files:
                file.start_writing()
            for file in self._files:
                file.synchronise()
            for file in self._files:
                self._named.append(file.publish())
            if self._files:
                flush_folder(self._files[0].path.parent)
        except BaseException:
            self._withdraw()
            raise
        finally:
            for file in self._files:
                file.abandon()

    def _withdraw(self) -> None:
        for path in self._named:
            with contextlib.suppress(OSError):  # there is an error to tell already
                path.unlink(missing_ok=True)
        self._named.clear()


def raise_on_all(error: BaseException | None, is_shared: bool) -> None:
    """Raise the error, and in processes without one of their own that there was one. A collective if it is shared."""
    errors = distributed.all_errors(error) if is_shared else []
    if error is not None:
        raise error
    if errors:
        raise RuntimeError("another process could not write its part of the snapshot: " + "; ".join(errors))


def wait_for_folder(folder: Path) -> None:
    """Wait until this process has nothing on the way into a folder."""
    for publication in list(_UNTOLD):
        if publication.is_in(folder):
            publication.wait()


@atexit.register
def _tell() -> None:
    for publication in list(_UNTOLD):
        if (error := publication.wait()) is not None:
            sys.excepthook(type(error), error, error.__traceback__)
