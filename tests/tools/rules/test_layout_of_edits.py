"""Where clauses go in tests over several lines, and code whose layout an edit cannot follow."""

import pytest

COUNT = "if accelerator.sync_gradients:\n    global_step += 1\n"
GATE = "accelerator.sync_gradients and not accelerator.optimizer_step_was_skipped"
COUNTED = f"if {GATE}:\n    global_step += 1\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            "if (\n    global_step % 9 == 0\n    and main\n):\n    save()",
            "if (\n    accelerator.sync_gradients\n    and not accelerator.optimizer_step_was_skipped\n"
            "    and global_step % 9 == 0\n    and main\n):\n    save()",
        ),
        (
            "if (\n    global_step % 9 == 0\n    or global_step == 4\n):\n    save()",
            "if (\n    accelerator.sync_gradients\n    and not accelerator.optimizer_step_was_skipped\n"
            "    and (global_step % 9 == 0\n    or global_step == 4)\n):\n    save()",
        ),
        (
            "if (global_step % 9 == 0\n        and main):\n    save()",
            f"if ({GATE} and global_step % 9 == 0\n        and main):\n    save()",
        ),
        (
            "if global_step % 9 == 0 \\\n        and main:\n    save()",
            f"if {GATE} and global_step % 9 == 0 \\\n        and main:\n    save()",
        ),
        (
            "if global_step % 9 == 0 \\\n        or main:\n    save()",
            f"if {GATE} and (global_step % 9 == 0 \\\n        or main):\n    save()",
        ),
        (
            "if (args.prompt is not None and global_step % args.validation_steps == 0 and accelerator.is_main_process):"
            "\n    save()",
            "if (\n    accelerator.sync_gradients\n    and not accelerator.optimizer_step_was_skipped\n"
            "    and args.prompt is not None\n    and global_step % args.validation_steps == 0\n"
            "    and accelerator.is_main_process\n):\n    save()",
        ),
    ],
    ids=["a clause a line", "or in brackets", "open bracket", "backslash", "backslash and or", "brackets get lines"],
)
def test_clauses_before_a_whole_test_keep_its_layout(loop, before, after):
    assert loop.becomes(COUNT + before, COUNTED + after)


def test_clauses_behind_one_of_a_test_with_a_backslash_stay_on_its_line(loop):
    assert loop.becomes(
        "if accelerator.sync_gradients \\\n        and main:\n    global_step += 1",
        f"if {GATE} \\\n        and main:\n    global_step += 1",
    )


@pytest.mark.parametrize(
    ("body", "line", "kind"),
    [
        ("window = 0; scheduler.step()", 19, "scheduler step"),
        ("if accelerator.sync_gradients: global_step += 1\nelse: print(1)", 19, "bookkeeping block"),
    ],
)
def test_code_that_shares_its_line_is_left_as_it_is_with_what_to_do(loop, body, line, kind):
    result = loop.rewrite(body)
    assert result.after == result.before
    (site,) = [site for site in result.sites if site.code == "layout"]
    assert site.message == "it shares its line with other code; put it on lines of its own and run this again"
    assert (site.line, site.kind) == (line, kind)
