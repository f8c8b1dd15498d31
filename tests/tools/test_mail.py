"""Mails are judged by `git am`: subject, body, author, date and tree come out as they went in."""

from __future__ import annotations

import pytest

from tools.mail import Envelope, format_mail, wrap
from tools.patch import Change, Patch

ENVELOPE = Envelope("A Person <a@example.invalid>", "Sun, 23 Aug 2026 00:34:28 +0530", "Base-Commit: " + "1" * 40)
BEFORE = b"".join(b"line %d\n" % i for i in range(20))
AFTER = BEFORE.replace(b"line 7\n", b"line seven\n")


def patch(**kwargs) -> Patch:
    fields = {
        "name": "f",
        "subject": "Fix counting in f.py",
        "body": "A reason.",
        "changes": {"f.py": Change(BEFORE, AFTER)},
    }
    return Patch(**(fields | kwargs))


def test_plain_git_am_commits_what_the_patch_says(repo):
    repo.commit({"f.py": BEFORE})
    repo.git("am", stdin=format_mail(patch(), ENVELOPE, 2, 3, context=3))
    assert repo.read("f.py") == AFTER
    shown = repo.git("show", "--no-patch", "--format=%an|%ae|%aD|%B").strip()
    assert shown == (
        "A Person|a@example.invalid|Sun, 23 Aug 2026 00:34:28 +0530|"
        "Fix counting in f.py\n\nA reason.\n\nBase-Commit: " + "1" * 40
    )


@pytest.mark.parametrize(
    ("number", "total", "prefix"), [(1, 1, "[PATCH]"), (1, 2, "[PATCH 1/2]"), (2, 2, "[PATCH 2/2]")]
)
def test_the_subject_says_which_of_how_many_and_no_commit_is_claimed(number, total, prefix):
    lines = format_mail(patch(), ENVELOPE, number, total, context=3).decode().split("\n")
    assert lines[0] == "From 0000000000000000000000000000000000000000 Mon Sep 17 00:00:00 2001"
    assert lines[3] == f"Subject: {prefix} Fix counting in f.py"


@pytest.mark.parametrize(("num_columns", "num_lines"), [(72, 1), (73, 2)])
def test_a_line_of_a_body_has_72_columns_at_most(num_columns, num_lines):
    assert wrap("x" * 40 + " " + "y" * (num_columns - 41)).count("\n") + 1 == num_lines


def test_text_beyond_ascii_survives_in_body_and_code(repo):
    before, after = "# größer\nx\n".encode(), "# größer\ny\n".encode()
    repo.commit({"f.py": before})
    mail = format_mail(
        patch(body="Because 2 ≤ 3.", changes={"f.py": Change(before, after)}), ENVELOPE, 1, 1, context=3
    )
    repo.git("am", stdin=mail)
    assert repo.read("f.py") == after
    assert "2 ≤ 3" in repo.git("show", "--no-patch", "--format=%B")


def test_files_stand_in_the_order_of_their_paths_whatever_order_they_came_in():
    change = Change(BEFORE, AFTER)
    one = format_mail(patch(changes={"b.py": change, "a.py": change}), ENVELOPE, 1, 1, context=0)
    two = format_mail(patch(changes={"a.py": change, "b.py": change}), ENVELOPE, 1, 1, context=0)
    assert one == two
    assert one.index(b"a/a.py") < one.index(b"a/b.py")


def test_a_three_way_merge_finds_the_base_by_its_blob_id(repo):
    repo.commit({"f.py": BEFORE})
    repo.commit({"f.py": BEFORE.replace(b"line 5\n", b"line five\n").replace(b"line 9\n", b"line nine\n")})
    mail = format_mail(patch(), ENVELOPE, 1, 1, context=3)
    with pytest.raises(AssertionError, match="does not apply"):
        repo.git("am", stdin=mail)
    repo.git("am", "--abort")
    repo.git("am", "-3", stdin=mail)
    assert b"line five\nline 6\nline seven\nline 8\nline nine\n" in repo.read("f.py")


def test_carriage_returns_stay_with_keep_cr(repo):
    before, after = b"a\r\nb\r\n", b"a\r\nc\r\n"
    repo.commit({"f.py": before})
    repo.git(
        "am", "--keep-cr", stdin=format_mail(patch(changes={"f.py": Change(before, after)}), ENVELOPE, 1, 1, context=3)
    )
    assert repo.read("f.py") == after


def test_paragraphs_and_lists_are_filled_to_72_columns_and_commands_are_not():
    text = wrap(
        "word " * 40
        + "\n\n- item "
        + "word " * 30
        + "\n- two\n\n    a command "
        + "x" * 80
        + "\n\nSee-also: "
        + "y" * 80
    )
    prose, items, command, trailer = text.split("\n\n")
    assert max(map(len, prose.split("\n") + items.split("\n"))) <= 72
    assert items.split("\n")[1].startswith("  word")
    assert items.split("\n")[-1] == "- two"
    assert command == "    a command " + "x" * 80
    assert trailer == "See-also: " + "y" * 80


@pytest.mark.parametrize("subject", ["[f.py] Fix it", "Re: it", " it", "", "two\nlines", "größer"])
def test_a_subject_that_git_am_would_change_is_an_error(subject):
    with pytest.raises(ValueError, match="subject"):
        format_mail(patch(subject=subject), ENVELOPE, 1, 1, context=3)


@pytest.mark.parametrize("line", ["---", "diff --git a/x b/x", "From here on", "Subject: x", "Date: today"])
def test_a_body_that_git_am_would_cut_is_an_error(line):
    with pytest.raises(ValueError, match="reads this line"):
        format_mail(patch(body=f"First.\n\n{line}"), ENVELOPE, 1, 1, context=3)


def test_a_patch_that_changes_nothing_is_an_error():
    with pytest.raises(ValueError, match="must change something"):
        format_mail(patch(changes={"f.py": Change(BEFORE, BEFORE)}), ENVELOPE, 1, 1, context=3)
