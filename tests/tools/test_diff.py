"""Diffs are judged by git: it applies them, and it gives the same blob ids."""

from __future__ import annotations

import subprocess

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tools.diff import blob_id, split_lines, unified_diff

PAIRS = {
    "a line in the middle": (b"a\nb\nc\nd\ne\nf\ng\n", b"a\nb\nc\nX\ne\nf\ng\n"),
    "the first line": (b"a\nb\n", b"X\nb\n"),
    "a line before the first": (b"a\nb\n", b"X\na\nb\n"),
    "a line after the last": (b"a\nb\n", b"a\nb\nX\n"),
    "the last line lacks its end": (b"a\nb", b"a\nX"),
    "an end is added": (b"a\nb", b"a\nb\n"),
    "an end is taken away": (b"a\nb\n", b"a\nb"),
    "carriage returns": (b"a\r\nb\r\nc\r\n", b"a\r\nX\r\nc\r\n"),
    "form feeds and lone carriage returns": (b"a\n\x0cb\rb\nc\n", b"a\n\x0cb\rX\nc\n"),
    "not UTF-8": (b"# \xe9\na\n", b"# \xe9\nX\n"),
    "from nothing": (b"", b"a\n"),
    "to nothing": (b"a\n", b""),
    "two changes far apart": (b"a\n" + b"-\n" * 20 + b"b\n", b"X\n" + b"-\n" * 20 + b"Y\n"),
    "two changes with shared context": (b"a\n" + b"-\n" * 6 + b"b\n", b"X\n" + b"-\n" * 6 + b"Y\n"),
    "two changes one line too far apart": (b"a\n" + b"-\n" * 7 + b"b\n", b"X\n" + b"-\n" * 7 + b"Y\n"),
    "removed lines that look like a header": (b"-- a\n--- b\nc\n", b"c\n"),
}


@pytest.mark.parametrize("context", [0, 1, 3])
@pytest.mark.parametrize("name", sorted(PAIRS))
def test_git_apply_gives_the_wanted_bytes(repo, name, context):
    before, after = PAIRS[name]
    repo.commit({"f.py": before, "other": b"x"})
    diff = unified_diff("f.py", before, after, context=context)
    repo.git("apply", "--index", *(["--unidiff-zero"] if context == 0 else []), "-", stdin=diff)
    assert repo.read("f.py") == after
    assert repo.git("rev-parse", ":f.py").strip() == blob_id(after)


@pytest.mark.parametrize("name", sorted(PAIRS))
def test_the_diff_without_context_is_the_one_that_git_makes(repo, name):
    before, after = PAIRS[name]
    repo.commit({"f.py": before})
    (repo.root / "f.py").write_bytes(after)
    repo.git("add", "f.py")
    command = ["git", "diff", "--cached", "--full-index", "--unified=0", "--no-color", "--text", "HEAD", "--", "f.py"]
    wanted = subprocess.run(command, cwd=repo.root, capture_output=True, check=True).stdout
    lines = [
        line.rsplit(b" @@ ")[0] + b" @@" if line.startswith(b"@@") and b" @@ " in line else line
        for line in wanted.split(b"\n")
    ]
    assert unified_diff("f.py", before, after, context=0) == b"\n".join(lines)


LINE = st.sampled_from([b"a", b"b", b"", b"c\r", b"    d"])
TEXT = st.builds(
    lambda lines, tail: b"".join(x + b"\n" for x in lines) + tail,
    st.lists(LINE, max_size=14),
    st.sampled_from([b"", b"z"]),
)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(before=TEXT, after=TEXT, context=st.sampled_from([0, 3]))
def test_any_two_texts_lead_to_each_other(repo, before, after, context):
    (repo.root / "f.py").write_bytes(before)
    diff = unified_diff("f.py", before, after, context=context)
    if before == after:
        assert diff == b""
        return
    repo.git("apply", "--unidiff-zero", "-", stdin=diff)
    assert repo.read("f.py") == after


def test_no_context_means_no_unchanged_line():
    before = b"".join(b"%d\n" % i for i in range(50))
    after = before.replace(b"7\n", b"seven\n").replace(b"30\n", b"")
    body = unified_diff("f.py", before, after, context=0).split(b"\n")[4:-1]
    assert {line[:1] for line in body} == {b"@", b"-", b"+"}


def test_a_path_with_a_space_and_one_beyond_ascii_are_found_again(repo):
    repo.commit({"a b.py": b"a\n", "ü.py": b"a\n"})
    for path in ("a b.py", "ü.py"):
        repo.git("apply", "--index", "-", stdin=unified_diff(path, b"a\n", b"b\n"))
        assert repo.read(path) == b"b\n"


def test_the_mode_is_named_so_that_git_finds_it_unchanged(repo):
    repo.commit({"f.py": b"a\n"})
    (repo.root / "f.py").chmod(0o755)
    repo.git("commit", "--quiet", "--all", "--message=mode")
    diff = unified_diff("f.py", b"a\n", b"b\n", mode="100755")
    repo.git("apply", "--index", "-", stdin=diff)
    assert repo.git("diff", "--cached", "--summary") == ""


@pytest.mark.parametrize("path", ["", "/abs.py", "a\nb.py", 'a"b.py', "a\\b.py"])
def test_a_path_that_no_diff_can_hold_is_an_error(path):
    with pytest.raises(ValueError, match="path in a diff"):
        unified_diff(path, b"a", b"b")


def test_three_lines_of_context_unless_told_otherwise():
    before, after = PAIRS["two changes far apart"]
    assert unified_diff("f.py", before, after) == unified_diff("f.py", before, after, context=3)


def test_negative_context_is_an_error():
    with pytest.raises(ValueError, match="got -1"):
        unified_diff("f.py", b"a", b"b", context=-1)


def test_lines_end_at_line_feeds_only():
    assert split_lines(b"a\x0c\rb\n\nc") == [b"a\x0c\rb\n", b"\n", b"c"]
    assert split_lines(b"") == []
