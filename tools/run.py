"""The main job in one go: releases and examples in, proven patches and a Trainer run out."""

from __future__ import annotations

import importlib.util
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tqdm import tqdm

from . import catalog
from . import series as store
from .catalog import Upstream
from .checkout import GitTree
from .errors import Unavailable
from .generate import Generated, export, generate, open_source, prove
from .overflow.trainer_table import trainer_table
from .release import WheelTree, download
from .report import summary, text_line
from .trainer.released_copy import changed_files, patched_copy

Say = Callable[[str], None]
Source = GitTree | WheelTree
RELEASES = ("accelerate", "transformers")
EXAMPLES = ("diffusers", "py_dreambooth")  # the second only where the first cannot be had


def run(out: Path) -> bool:
    """Generates and proves every series; True if nothing was refused on a pinned base and the Trainer counts right.

    Results go to stdout as they come, a progress bar to stderr.
    Raises: CannotRun if a release cannot be had, or a series does not apply.
    """
    rows = catalog.load()
    num_series = sum(len(rows[name].series) for name in (*RELEASES, EXAMPLES[0])) + 1
    with tqdm(total=num_series, unit="series", desc="patches", file=sys.stderr, leave=False) as bar:

        def say(line: str) -> None:
            tqdm.write(line, file=sys.stdout)

        made = [_newest(rows[name], out, say, bar) for name in RELEASES]
        _examples(rows, out, say, bar)
        bar.set_postfix_str("Trainer runs")
        is_right = _trainer(made, say, bar)
        bar.update()
    return is_right and all(one.series.patches for one in made)


def _newest(row: Upstream, out: Path, say: Say, bar: tqdm) -> Generated:
    """The series of the newest release; of the pinned one where the newest has another shape."""
    bar.set_postfix_str(row.name)
    with _newest_release(row, say) as tree:
        if not tree.is_exact:
            made = generate(row, tree)
            if made.series.patches:
                return _finish(made, out, say, bar)
            say(f"{row.name} {tree.base}: refused, because it has another shape; falling back to {row.base}")
            for file in store.file_reports(made.series):
                for site in file.sites:
                    say(f"    {text_line(file.path, site)}")
    with open_source(row) as tree:
        return _finish(generate(row, tree), out, say, bar)


@contextmanager
def _newest_release(row: Upstream, say: Say) -> Iterator[WheelTree]:
    """The newest release of the package index, or the pinned one if the index is out of reach and a copy is cached."""
    try:
        wheel = download(row, None)
    except Unavailable as error:
        say(f"{row.name}: the newest release is out of reach, taking {row.base} ({error})")
        wheel = download(row, row.base)
    with WheelTree(wheel, row.root, base=row.base) as tree:
        yield tree


def _examples(rows: dict[str, Upstream], out: Path, say: Say, bar: tqdm) -> None:
    """Diffusers at its pinned base, or three scripts of its shape from the package index."""
    row = rows[EXAMPLES[0]]
    try:
        tree: Source = open_source(row)
    except Unavailable as error:
        say(f"{row.name}: not here ({error})")
        row = rows[EXAMPLES[1]]
        say(f"{row.name}: three scripts of the same shape instead")
        tree = open_source(row)
    bar.total += len(row.series) - len(rows[EXAMPLES[0]].series)
    with tree:
        for name in row.series:
            bar.set_postfix_str(f"{row.name} {name}")
            _finish(generate(row, tree, name), out, say, bar)


def _finish(made: Generated, out: Path, say: Say, bar: tqdm) -> Generated:
    """Proves a series, writes its mails, and tells what it came to."""
    tree = prove(made)
    folder = export(made, out)
    num_patches = _counted(len(made.series.patches), "patch", "patches")
    num_files = _counted(len({path for patch in made.series.patches for path in patch.changes}), "file")
    pinned = "" if made.tree.is_exact else ", not the pinned base"
    say(f"{made.upstream.name} {made.tree.base}{pinned}, series {made.series.name}:")
    say(f"    source     {_where(made)}")
    say(f"    found      {summary(store.file_reports(made.series))}")
    say(f"    generated  {num_patches} of {num_files} in {folder}")
    say(f"    applies    as mails and without context, both to tree {tree}")
    bar.update()
    return made


def _trainer(made: list[Generated], say: Say, bar: tqdm) -> bool:
    """The same Trainer runs on unpatched and patched releases; True if the patched ones count right."""
    if importlib.util.find_spec("torch") is None:
        say("the Trainer runs are left out: this Python has no torch")
        return True
    with tempfile.TemporaryDirectory(prefix="applied-updates-") as folder:
        unpatched, patched = Path(folder) / "unpatched", Path(folder) / "patched"
        for one in made:
            with zipfile.ZipFile(download(one.upstream, one.tree.base)) as wheel:
                wheel.extractall(unpatched)
            patched_copy(unpatched / one.upstream.name, changed_files(one.series), patched)
        proof = trainer_table([unpatched], [patched, unpatched], on_run=bar.set_postfix_str)
    say(f"\n{' and '.join(f'{one.upstream.name} {one.tree.base}' for one in reversed(made))}")
    say(proof.text.rstrip())
    return proof.is_right


def _where(made: Generated) -> str:
    """Where the text came from, and how sure it is to be the pinned one."""
    if isinstance(made.tree, GitTree):
        return f"{made.tree.root}, read at the commit"
    known = made.tree.base in made.upstream.releases
    return f"the package index, {'sha256 as recorded' if known else 'a release whose sha256 is not recorded here'}"


def _counted(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"
