"""Runs many short scripts in forks of one process, so that torch and accelerate are imported once.

Each line of the input is a job: the observer's configuration, a script, its arguments and a folder. The fork installs the
observer as a fresh interpreter would, and runs the script as `__main__`. Each line of the output is an exit code.
"""

import atexit
import importlib.util
import json
import os
import runpy
import sys

import accelerate  # noqa: F401
import torch
import torch._dynamo  # what the first optimizer would import
import tqdm  # noqa: F401

torch.set_num_threads(1)


def install(inside, config):
    path = os.path.join(inside, "__init__.py")
    spec = importlib.util.spec_from_file_location("_overflow_inside", path, submodule_search_locations=[inside])
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    module.install(config)


def work(job):
    os.chdir(job["folder"])
    with open("output.txt", "wb") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    sys.path[:0] = [os.path.dirname(job["script"]), *job["path"]]
    sys.argv = [job["script"], *job["arguments"]]
    if job["config"] is not None:
        install(job["inside"], job["config"])
    runpy.run_path(job["script"], run_name="__main__")


def leave():
    """Ends a fork: a gloo thread that drops a tensor while the interpreter winds up aborts it, at times."""
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


for line in sys.stdin:
    pid = os.fork()
    if pid == 0:
        work(json.loads(line))
        leave()
    _, status = os.waitpid(pid, 0)
    print(os.waitstatus_to_exitcode(status), flush=True)
