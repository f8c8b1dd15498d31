"""How long a report over a tree of scripts takes, next to what LibCST needs only to parse the guarded ones.

    python -m benchmarks.rewrite_speed CHECKOUT/examples

Bar: less than a quarter, both measured in this one process, and less than 300 MiB. LibCST is no dependency of the
project; install it next to it to run this. Exits 1 where a bar is missed.
"""

from __future__ import annotations

import resource
import sys
import time
from pathlib import Path

from tools.rewrite import rewrite

QUARTER = 0.25
MEMORY_MIB = 300


def measure_reports(files: list[bytes]) -> tuple[float, int]:
    """Seconds of processor time for all files, and how many sites were found."""
    start = time.process_time()
    sites = sum(len(rewrite(data).sites) for data in files)
    return time.process_time() - start, sites


def measure_parsing(files: list[bytes]) -> float:
    """Seconds of processor time that LibCST takes to parse the files."""
    import libcst

    start = time.process_time()
    for data in files:
        libcst.parse_module(data)
    return time.process_time() - start


def main(root: str) -> int:
    files = [path.read_bytes() for path in sorted(Path(root).rglob("*.py"))]
    guarded = [data for data in files if b"sync_gradients" in data]
    reports, sites = min(measure_reports(files) for _ in range(3))
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    parsing = min(measure_parsing(guarded) for _ in range(2))
    ratio = reports / parsing
    print(f"report over {len(files)} files: {reports:.2f} s, {sites} sites, {memory:.0f} MiB")
    print(f"LibCST parses {len(guarded)} guarded files: {parsing:.2f} s")
    print(f"ratio {ratio:.3f} (bar {QUARTER}), memory {memory:.0f} MiB (bar {MEMORY_MIB})")
    return int(ratio >= QUARTER or memory >= MEMORY_MIB)


if __name__ == "__main__":
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_dir():
        sys.exit("give the folder of scripts to measure: python -m benchmarks.rewrite_speed CHECKOUT/examples")
    sys.exit(main(sys.argv[1]))
