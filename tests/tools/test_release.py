"""Released packages are read from their wheel, which must be the very file that the catalogue means."""

from __future__ import annotations

import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from tools import catalog, release
from tools.catalog import Release, Upstream
from tools.errors import CannotRun, Unavailable
from tools.release import WheelTree, download, open_release, version_of

WHEEL = "sample_pkg-1.0-py3-none-any.whl"


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    path = tmp_path / WHEEL
    with zipfile.ZipFile(path, "w") as archive:
        for name, day in (("pkg/a.py", 2), ("pkg/sub/b.py", 3), ("pkg/c.txt", 1)):
            archive.writestr(zipfile.ZipInfo(name, (2025, 5, day, 7, 8, 10)), f"# {name}\n")
    return path


def test_files_have_the_paths_of_the_repository(wheel):
    with WheelTree(wheel, "src", base="1.0") as tree:
        assert tree.paths("src/pkg/**/*.py") == ["src/pkg/a.py", "src/pkg/sub/b.py"]
        assert tree.read("src/pkg/a.py") == b"# pkg/a.py\n"
        assert (tree.base, tree.is_exact, tree.mode("src/pkg/a.py")) == ("1.0", True, "100644")
        with pytest.raises(FileNotFoundError, match=r"pkg/a\.py is not in sample_pkg"):
            tree.read("pkg/a.py")


def test_the_date_is_that_of_the_newest_file_unless_the_catalogue_has_one(wheel):
    assert WheelTree(wheel).date == "Sat, 03 May 2025 07:08:10 +0000"
    assert WheelTree(wheel, date="Mon, 05 May 2025 00:00:00 +0000").date == "Mon, 05 May 2025 00:00:00 +0000"


@pytest.mark.parametrize("name", ["pkg-1.0.tar.gz", "pkg.whl", "pkg-1.0-any.whl"])
def test_only_wheels_are_read(name, tmp_path):
    with pytest.raises(CannotRun, match="must be a wheel"):
        version_of(tmp_path / name)


def test_a_wheel_that_cannot_be_opened_is_said_to_be_so(tmp_path):
    (tmp_path / WHEEL).write_bytes(b"not a zip file")
    with pytest.raises(CannotRun, match="a wheel that can be opened"):
        WheelTree(tmp_path / WHEEL)


@pytest.fixture
def cached(wheel, tmp_path, monkeypatch) -> Upstream:
    """An upstream whose release lies in the cache."""
    (tmp_path / "cache" / "releases").mkdir(parents=True)
    wheel.rename(tmp_path / "cache" / "releases" / WHEEL)
    monkeypatch.setattr(release, "cache_folder", lambda: tmp_path / "cache")
    return Upstream("sample", "1.0", ("*",), ("s",), "A <a@b>", distribution="sample-pkg")


def test_what_is_in_the_cache_is_not_downloaded_again(cached, tmp_path):
    assert download(cached, "1.0") == tmp_path / "cache" / "releases" / WHEEL


def test_another_hash_is_an_error_and_the_file_goes(cached, tmp_path):
    wrong = replace(cached, releases={"1.0": Release("1.0", "0" * 64, "")})
    with pytest.raises(CannotRun, match=r"must have the sha256 0{64}, got [0-9a-f]{64}; the file was removed"):
        download(wrong, "1.0")
    assert not (tmp_path / "cache" / "releases" / WHEEL).exists()


@pytest.mark.processes
def test_a_release_for_a_newer_python_can_be_read_all_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(release, "cache_folder", lambda: tmp_path / "cache")
    (tmp_path / "index").mkdir()
    with zipfile.ZipFile(tmp_path / "index" / WHEEL, "w") as archive:
        about = "Metadata-Version: 2.1\nName: sample-pkg\nVersion: 1.0\nRequires-Python: >=99\n"
        archive.writestr("sample_pkg-1.0.dist-info/METADATA", about)
        archive.writestr("sample_pkg-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\n")
        archive.writestr("sample_pkg-1.0.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    row = Upstream("sample", "1.0", ("*",), ("s",), "A <a@b>", distribution="sample-pkg")
    assert download(row, "1.0") == tmp_path / "cache" / "releases" / WHEEL


@pytest.mark.network
class TestIndex:
    @pytest.fixture(autouse=True)
    def empty_cache(self, tmp_path, monkeypatch):
        monkeypatch.setattr(release, "cache_folder", lambda: tmp_path / "cache")

    def test_a_pinned_release_comes_as_the_catalogue_says(self, tmp_path):
        row = catalog.find("py_dreambooth")
        with open_release(row) as tree:
            assert tree.is_exact
            assert tree.date == row.releases["0.2.8"].date
            assert len(tree.paths(*row.globs)) == 4
        assert [path.name for path in (tmp_path / "cache" / "releases").iterdir()] == [
            "py_dreambooth-0.2.8-py2.py3-none-any.whl"
        ]

    def test_a_version_that_is_not_there_is_unavailable(self, tmp_path):
        with pytest.raises(Unavailable, match=r"py-dreambooth==0\.0\.99 could not be downloaded with pip: ERROR"):
            open_release(catalog.find("py_dreambooth"), "0.0.99")
        assert list((tmp_path / "cache" / "releases").iterdir()) == []
