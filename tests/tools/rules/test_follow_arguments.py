"""Boundary flags that are handed on."""

import pytest

from tools.rewrite import Options, rewrite

TEXT = """\
class Trainer:
    def after(self, model, is_boundary):
        if not is_boundary:
            return
        self.ema.step(model)

    def train(self, loader):
        accelerator = Accelerator(gradient_accumulation_steps=2)
        optimizer = accelerator.prepare(AdamW())
        for batch in loader:
            with accelerator.accumulate():
                accelerator.backward(batch)
                optimizer.step()
            self.after(1, accelerator.sync_gradients)
"""
FOLLOWED = "self.after(1, accelerator.sync_gradients and not accelerator.optimizer_step_was_skipped)"


def codes(text, **options):
    return {site.code for site in rewrite(text.encode(), Options(**options)).sites}


def test_a_flag_for_bookkeeping_says_that_the_update_was_applied():
    assert rewrite(TEXT.encode()).after.decode() == TEXT.replace("self.after(1, accelerator.sync_gradients)", FOLLOWED)


def test_keywords_and_aliases_are_followed():
    by_name = TEXT.replace("accelerator.sync_gradients)", "is_boundary=accelerator.sync_gradients)")
    assert "is_boundary=accelerator.sync_gradients and not" in rewrite(by_name.encode()).after.decode()
    alias = TEXT.replace(
        "            self.after(1, accelerator",
        "            synced = accelerator.sync_gradients\n            self.after(1, x",
    )
    alias = alias.replace("x.sync_gradients", "synced")
    assert (
        "self.after(1, synced and not accelerator.optimizer_step_was_skipped)"
        in rewrite(alias.encode()).after.decode()
    )


def test_nothing_is_followed_where_the_user_says_so():
    result = rewrite(TEXT.encode(), Options(follow_arguments=False))
    assert result.after == TEXT.encode()
    assert "flag-passed" in {site.code for site in result.sites}


def test_a_function_that_the_file_does_not_show_is_refused_until_the_user_says_so():
    text = TEXT.replace("self.after(1,", "self.callbacks.on_update(1,")
    result = rewrite(text.encode())
    assert result.after == text.encode()
    assert any("--follow-arguments" in site.message for site in result.sites)
    assert b"skipped" in rewrite(text.encode(), Options(follow_arguments=True)).after


@pytest.mark.parametrize("line", ["accelerator.clip_grad_norm_(model)", "optimizer.zero_grad()"])
def test_a_function_that_clips_or_clears_gradients_is_refused(line):
    text = TEXT.replace("self.ema.step(model)", line)
    assert rewrite(text.encode()).after == text.encode()
    assert "flag-passed" in codes(text)


def test_above_the_step_an_argument_means_something_else():
    text = TEXT.replace("                optimizer.step()\n", "").replace(
        "sync_gradients)\n", "sync_gradients)\n            optimizer.step()\n"
    )
    assert rewrite(text.encode()).after == text.encode()
