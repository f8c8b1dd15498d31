"""Runs one loop under several overflow plans and prints one JSON result a line.  python run_plans.py LOOP PLAN..."""

import contextlib
import io
import os
import runpy
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "_stubs"))

for plan in sys.argv[2:]:
    for name in ("accelerate", "toykit"):
        sys.modules.pop(name, None)
    os.environ["OVERFLOW_AT"] = plan
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        runpy.run_path(sys.argv[1], run_name="__main__")
    print(output.getvalue().splitlines()[-1])
