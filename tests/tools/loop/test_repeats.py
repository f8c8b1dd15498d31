"""What repeated statements read has its value at skipped boundaries too."""

import textwrap

import pytest

from tools.rewrite import rewrite

HEAD = """\
from accelerate import Accelerator


def main(loader, model, optimizer, ready, tr, st, args):
    accelerator = Accelerator(gradient_accumulation_steps=2)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    global_step, total, n, images_seen, epoch = 0, 0.0, 0, 0, 0
    for i, batch in enumerate(loader):
        with accelerator.accumulate(model):
            total += model(batch)
            tr.window.append(1)
            optimizer.step()
"""


def rewritten(block, head=HEAD):
    """The rewrite of a gated block behind the step, and the codes of its sites."""
    text = head + "        if accelerator.sync_gradients:\n" + textwrap.indent(textwrap.dedent(block), " " * 12)
    result = rewrite(text.encode())
    return result.after.decode(), {site.code for site in result.sites}, text


def arm(block):
    """The statements that the rewrite repeats."""
    after, codes, _ = rewritten(block)
    assert "nested-reset" not in codes
    return textwrap.dedent(after.partition("elif accelerator.sync_gradients:\n")[2])


@pytest.mark.parametrize(
    ("block", "wanted"),
    [
        ("n = len(batch)\nimages_seen += n\n", "n = len(batch)\nimages_seen += n\n"),
        ("x = batch\nb, d = x.shape\ntok_seen += b * d\n", "x = batch\nb, d = x.shape\ntok_seen += b * d\n"),
        ("last = i % 5 == 4\nif last:\n    print(1)\n    epoch += 1\n",
         "last = i % 5 == 4\nif last:\n    epoch += 1\n"),
        ("window = tr.window\nprint(window)\nwindow.clear()\n", "window = tr.window\nwindow.clear()\n"),
        ("st.n = batch.size(0)\nst.images += st.n\n", "st.n = batch.size(0)\nst.images += st.n\n"),
        ("n: int = int(batch.numel())\nif ready:\n    m = n\n    images_seen += m\n",
         "n: int = int(batch.numel())\nif ready:\n    m = n\n    images_seen += m\n"),
        ("n = 1\nprint(n)\nimages_seen += 2\n", "images_seen += 2\n"),
        ("n = 1\nn = len(batch)\nimages_seen += n\n", "n = len(batch)\nimages_seen += n\n"),
        ("n = 1\nimages_seen += n\nn = 2\ndata_seen += n\n", "n = 1\nimages_seen += n\nn = 2\ndata_seen += n\n"),
        ("for k in st.sums:\n    tokens_seen += k\n", "for k in st.sums:\n    tokens_seen += k\n"),
        ("k = 3\nfor k in st.sums:\n    tokens_seen += k\n", "for k in st.sums:\n    tokens_seen += k\n"),
    ],
)  # fmt: skip
def test_the_assignments_that_repeated_lines_read_are_repeated(block, wanted):
    assert arm("global_step += 1\n" + block) == wanted


@pytest.mark.parametrize(
    ("block", "name"),
    [
        ("n = next(args)\nimages_seen += n\n", "n"),
        ("n = args.size(key=1)\nimages_seen += n\n", "n"),
        ("n += 1\nimages_seen += n\n", "n"),
        ("if ready:\n    n = 3\nimages_seen += n\n", "n"),
        ("with args.open() as n:\n    print(n)\nimages_seen += n\n", "n"),
        ("print(n := 2)\nimages_seen += n\n", "n"),
        ("import shapes as n\nimages_seen += n.size\n", "n"),
        ("images_seen += n\nn = len(batch)\n", "n"),
        ("m = i - n\nimages_seen += m\nn = i\n", "n"),
        ("n = global_step * 2\nimages_seen += n\n", "global_step"),
        ("n = print(1) or 2\nif ready:\n    images_seen += n\n", "n"),
    ],
)
def test_what_cannot_be_computed_twice_is_refused(block, name):
    after, codes, text = rewritten("global_step += 1\n" + block)
    assert after == text
    assert "nested-reset" in codes
    assert any(f"needs `{name}`" in site.message for site in rewrite(text.encode()).sites)


@pytest.mark.parametrize("test", ["global_step % 2 == 0", "step % 2 == 0"])
def test_a_sum_cleared_under_a_name_for_a_test_of_the_counter_goes_back_to_where_it_was(test):
    block = f"global_step += 1\nstep = global_step\nnow = {test}\nif now:\n    print(total)\n    total = 0.0\n"
    assert arm(block) == "total = applied_total + 0\n"


def test_what_a_function_computes_for_itself_is_not_repeated_in_its_caller():
    head = HEAD.replace(
        "\n\ndef main", "\n\ndef count(st, batch):\n    n = len(batch)\n    st.images += n\n\n\ndef main"
    )
    after, codes, text = rewritten("global_step += 1\ncount(st, batch)\n", head)
    assert (after, "nested-reset" in codes) == (text, True)


@pytest.mark.parametrize("grown", ["images *= 2", "images += [n]", "images += tr.images", "images += tr.make()"])
def test_images_themselves_are_no_data_that_is_counted(grown):
    _, codes, _ = rewritten(f"global_step += 1\n{grown}\n")
    assert "data-kept" not in codes
    assert "gated" in codes


def test_a_test_of_the_counter_that_is_computed_in_front_of_the_block_is_one_too():
    head = HEAD + "        now = (global_step + 1) % 2 == 0\n"
    after, _, _ = rewritten("global_step += 1\nif now:\n    total = 0.0\n", head)
    assert after.endswith("elif accelerator.sync_gradients:\n            total = applied_total + 0\n")


@pytest.mark.parametrize(("test", "is_refused"), [("accelerator.sync_gradients", True), ("ready", False)])
def test_what_another_block_sets_at_boundaries_is_not_read_by_repeated_lines(test, is_refused):
    head = HEAD + f"        if {test}:\n            n = len(batch)\n"
    _, codes, _ = rewritten("global_step += 1\nimages_seen += n\n", head)
    assert ("nested-reset" in codes) == is_refused


def test_an_early_continue_repeats_them_as_well():
    text = HEAD + textwrap.indent(
        "if not accelerator.sync_gradients:\n    continue\nn = len(batch)\nimages_seen += n\nglobal_step += 1\n",
        " " * 8,
    )
    after = rewrite(text.encode()).after.decode()
    gate = "if accelerator.optimizer_step_was_skipped:\n            n = len(batch)\n            images_seen += n\n"
    assert gate + "            continue\n" in after
