"""Shows what share of each package's branches the tests took, and fails below the share that is asked for.

Reads coverage's JSON report from stdin: `coverage json -o - | python .ci/branches.py 95`.
"""

from __future__ import annotations

import json
import sys
from collections import Counter


def main(wanted: float) -> int:
    taken: Counter[str] = Counter()
    there: Counter[str] = Counter()
    for path, file in json.load(sys.stdin)["files"].items():
        package = path.replace("\\", "/").partition("/")[0]
        taken[package] += file["summary"]["covered_branches"]
        there[package] += file["summary"]["num_branches"]
    shares = {package: 100 * taken[package] / there[package] for package in sorted(there) if there[package]}
    for package, share in shares.items():
        print(f"{package}: {taken[package]} of {there[package]} branches, {share:.1f} %")
    low = [package for package, share in shares.items() if share < wanted]
    if low or not shares:
        print(f"each package must have {wanted:g} % of its branches taken by the tests: {', '.join(low) or 'no data'}")
    return int(bool(low or not shares))


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1])))
