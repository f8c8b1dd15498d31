"""What a series refuses, held against what the committed one refuses at the pinned base."""

from __future__ import annotations

import json
from collections import Counter

from . import catalog
from . import series as store
from .catalog import Upstream
from .patch import Series
from .report import FileReport
from .site import Outcome


def refused(reports: list[FileReport]) -> Counter[tuple[str, str]]:
    """How often each path and code stands for something that was refused."""
    return Counter(
        (file.path, site.code) for file in reports for site in file.sites if site.outcome is Outcome.REFUSED
    )


def refused_at_base(upstream: Upstream, name: str) -> Counter[tuple[str, str]]:
    """The same of the committed series at the pinned base; nothing where none is committed or it cannot be read."""
    path = store.folder_of(catalog.patches_folder(), upstream.name, upstream.base, name) / store.REPORT
    try:
        files = json.loads(path.read_bytes())["files"]
        found = [(file["path"], site["code"], site["outcome"]) for file in files for site in file["sites"]]
    except (OSError, ValueError, KeyError, TypeError):
        return Counter()
    return Counter((path, code) for path, code, outcome in found if outcome == Outcome.REFUSED.value)


def count_new(upstream: Upstream, series: Series) -> tuple[int, int]:
    """How much a series refuses, and how much of that is not refused at the pinned base as well."""
    here = refused(store.file_reports(series))
    return here.total(), (here - refused_at_base(upstream, series.name)).total()
