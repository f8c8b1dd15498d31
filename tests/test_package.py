"""What is built, what it asks for, and the hook that other repositories take from here."""

from __future__ import annotations

import configparser
import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENT = re.compile(r"([\w-]+)>=([\d.]+)")


def bounds(lines: str) -> dict[str, str]:
    """The oldest version of each requirement. Raises: AssertionError if one has no lower bound."""
    found = [REQUIREMENT.match(line) for line in lines.split("\n") if line]
    assert all(found), lines
    return {match[1]: match[2] for match in found if match}


def test_the_oldest_versions_that_are_tested_are_the_bounds_that_are_promised():
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    promised = bounds(config["options"]["install_requires"])
    for extra in ("plot", "tools", "trainer"):
        promised |= bounds(config["options.extras_require"][extra])
    text = (ROOT / "constraints" / "oldest.txt").read_text(encoding="utf-8")
    tested = dict(line.split("==") for line in text.splitlines() if not line.startswith("#"))
    parts = {
        name: [[int(part) for part in version.split(".")] for version in (promised[name], tested[name])]
        for name in promised | tested
    }
    assert {
        name: pair for name, pair in parts.items() if pair[1] != pair[0] + [0] * (len(pair[1]) - len(pair[0]))
    } == {}


def run(*command: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("GIT_", "PYTHON", "COV"))}
    return subprocess.run(
        [str(word) for word in command], cwd=cwd, env=kept | environment, capture_output=True, text=True, check=False
    )


def succeed(*command: str | Path, cwd: Path, **environment: str) -> str:
    done = run(*command, cwd=cwd, **environment)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def copy(tmp_path_factory) -> Path:
    """A copy of all that git does not ignore, in a repository of its own."""
    folder = tmp_path_factory.mktemp("copy")
    listed = succeed("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=ROOT)
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    commit(folder)
    return folder


def commit(folder: Path) -> str:
    """Makes a repository of the folder, if it is none, and commits all of it; returns the commit."""
    succeed("git", "init", "--quiet", cwd=folder)
    succeed("git", "add", "--all", cwd=folder)
    who = ("-c", "user.name=a", "-c", "user.email=a@example.invalid", "-c", "commit.gpgsign=false")
    succeed("git", *who, "commit", "--quiet", "--no-verify", "--message", "all", cwd=folder)
    return succeed("git", "rev-parse", "HEAD", cwd=folder).strip()


@pytest.fixture(scope="module")
def wheel(copy, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    succeed(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, ".", cwd=copy)
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.mark.network
@pytest.mark.processes
@pytest.mark.xdist_group("package")
class TestWheel:
    def test_it_holds_both_packages_and_nothing_called_tools(self, wheel):
        names = zipfile.ZipFile(wheel).namelist()
        tops = {name.split("/")[0] for name in names}
        (about,) = [top for top in tops if top.endswith(".dist-info")]
        assert tops == {"accelerate_ext", "accelerate_ext_tools", about}
        assert {
            "accelerate_ext/py.typed",
            "accelerate_ext_tools/patches/upstreams.toml",
            "accelerate_ext_tools/schemas/report.schema.json",
            f"{about}/licenses/LICENSE",
        } <= set(names)

    def test_it_says_what_it_is(self, wheel):
        archive = zipfile.ZipFile(wheel)
        (metadata,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        head, body = archive.read(metadata).decode().split("\n\n", 1)
        assert "License-Expression: Apache-2.0" in head
        assert "Classifier: Typing :: Typed" in head
        assert "Requires-Python: >=3.10" in head
        assert {f"Provides-Extra: {extra}" for extra in ("plot", "tools", "trainer", "test")} <= set(head.split("\n"))
        assert body == (ROOT / "README.md").read_text(encoding="utf-8")

    def test_installed_alone_both_commands_work(self, wheel, tmp_path):
        venv.create(tmp_path / "venv", with_pip=True)
        python = tmp_path / "venv" / "bin" / "python"
        succeed(python, "-m", "pip", "install", "--quiet", "--no-deps", wheel, cwd=tmp_path)
        site = succeed(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=tmp_path).strip()
        above = "\n".join(path for path in sys.path if path.endswith("site-packages"))
        Path(site, "zz-above.pth").write_text(above + "\n", encoding="utf-8")  # torch and the rest are not copied
        where = (
            "import accelerate_ext as a, accelerate_ext.ema, accelerate_ext_tools as b; print(a.__file__, b.__file__)"
        )
        assert succeed(python, "-c", where, cwd=tmp_path).count(site) == 2
        gone = "import importlib.util; print(importlib.util.find_spec('tools'))"
        assert succeed(python, "-c", gone, cwd=tmp_path).strip() == "None"
        assert succeed(python.with_name("accelerate-ext"), "--version", cwd=tmp_path).startswith("accelerate-ext, ")
        script = ROOT / "docs" / "examples" / "train.py"
        shown = run(python.with_name("accelerate-ext-tools"), "report", script, cwd=tmp_path)
        assert (shown.returncode, "2 to rewrite" in shown.stdout) == (1, True), shown.stderr


@pytest.mark.network
@pytest.mark.processes
@pytest.mark.xdist_group("package")
class TestHook:
    """The hook in a fork, run by pre-commit."""

    @pytest.fixture
    def fork(self, copy, tmp_path) -> Path:
        folder = tmp_path / "fork"
        folder.mkdir()
        rev = succeed("git", "rev-parse", "HEAD", cwd=copy).strip()
        (folder / ".pre-commit-config.yaml").write_text(
            f"repos:\n  - repo: {copy}\n    rev: {rev}\n    hooks:\n      - id: applied-updates\n", encoding="utf-8"
        )
        (folder / "other.py").write_text("x = 1\n", encoding="utf-8")
        for name in ("train.py", "again.py"):
            shutil.copy(ROOT / "docs" / "examples" / "train.py", folder / name)
        commit(folder)
        return folder

    def test_it_fails_until_the_scripts_count_applied_updates_and_needs_no_torch(self, fork, tmp_path):
        def hook() -> subprocess.CompletedProcess[str]:
            command = (sys.executable, "-m", "pre_commit", "run", "--all-files", "--color=never")
            return run(*command, cwd=fork, PRE_COMMIT_HOME=str(tmp_path / "cache"))

        failed = hook()
        assert failed.returncode == 1, failed.stdout + failed.stderr
        assert "hook id: applied-updates" in failed.stdout
        for name in ("train.py", "again.py"):
            assert re.search(rf"^{name}:\d+:\d+: gated: would rewrite", failed.stdout, re.MULTILINE)
        assert " left " not in failed.stdout
        (tool,) = tmp_path.glob("cache/*/py_env-*/bin/accelerate-ext-tools")
        succeed(tool, "rewrite", "--write", "train.py", "again.py", cwd=fork)
        commit(fork)
        passed = hook()
        assert passed.returncode == 0, passed.stdout + passed.stderr
        assert "Passed" in passed.stdout
        assert [path.name for path in tmp_path.glob("cache/*/py_env-*/lib/*/site-packages/torch")] == []
