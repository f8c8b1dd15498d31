"""What expressions are called, and what a name says about the thing behind it."""

import ast
import re

import pytest

from tools.loop import names


def expression(text):
    return ast.parse(text, mode="eval").body


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("a", "a"),
        ("a.b.c", "a.b.c"),
        ("a['b'].c", "a['b'].c"),
        ("a[0]", "a[0]"),
        ("a['b'][1]", "a['b'][1]"),
        ("a[i]", None),
        ("a().b", None),
        ("a[i].b", None),
        ("a[i]['b']", None),
        ("1", None),
    ],
)
def test_a_key_is_the_text_of_a_name_an_attribute_or_a_constant_item(text, key):
    assert names.key(expression(text)) == key


def test_nothing_has_no_key():
    assert names.key(None) is None


@pytest.mark.parametrize(
    ("key", "root", "last"),
    [
        ("a", "a", "a"),
        ("a.b", "a", "b"),
        ("self.x.y", "self", "y"),
        ("a['b']", "a", "b"),
        ("a.b['c']", "a", "c"),
        ("a['b'].c", "a", "c"),
        ("a[0].b.c['d']", "a", "d"),
        ("[]", "", "[]"),
    ],
)
def test_the_first_and_the_last_word_of_a_key(key, root, last):
    assert (names.root(key), names.last(key)) == (root, last)


@pytest.mark.parametrize(("text", "name"), [("A()", "A"), ("a.b.C(1)", "C"), ("a", ""), ("a[i]()", ""), ("a()()", "")])
def test_the_class_of_a_call_is_the_last_word_of_what_it_calls(text, name):
    assert names.class_of(expression(text)) == name


SUGGESTED = {
    names.suggests_optimizer: (
        ["optimizer", "my_optim", "OPTIMIZER", "opt", "opt_d", "optG", "opt2", "opt_generator", "gen_opt", "gen_opt2"],
        ["adopt", "optical_flow", "lr_scheduler_optim", "optimizer_warmup", "gen_opt22", "model", "xopt_g"],
    ),
    names.suggests_scheduler: (
        ["scheduler", "lr_sched", "lr", "my_lr", "lr_plan", "my_lr_plan", "warmup", "LR"],
        ["lrs", "flr", "clear", "model"],
    ),
    names.suggests_ema: (
        [
            *("ema", "ema_model", "model_ema", "my_ema_net", "ema2", "swa", "swa_model", "emanet", "model_swa2"),
            *("averaged_model", "average_model", "net_averaged_model", "modelEMA", "netEMA2", "EMA"),
        ],
        ["schema", "cinema", "remap", "model", "average", "modelEMAx"],
    ),
    names.suggests_bar: (["bar", "progress_bar", "pbar", "pbar2", "progress", "tqdm_loop"], ["barrier", "model"]),
    names.suggests_accelerator: (
        ["accelerator", "my_accelerator", "accelerator2", "acc", "accel", "Accelerator"],
        ["accelerator22", "accuracy", "my_acc", "accelerate", "accelerators"],
    ),
    names.counts_data: (
        [
            *("micro_step", "batches", "num_samples", "tokens", "examples_seen", "n_seen", "consumed", "attempts"),
            *("epoch", "skipped", "data_step", "example_count"),
        ],
        ["global_step", "updates", "iteration"],
    ),
}


@pytest.mark.parametrize(
    ("suggests", "name", "answer"),
    [
        (test, name, answer)
        for test, lists in SUGGESTED.items()
        for answer, each in zip((True, False), lists, strict=True)
        for name in each
    ],
)
def test_what_a_name_suggests(suggests, name, answer):
    assert suggests(name) is answer


@pytest.mark.parametrize("suggests", SUGGESTED)
def test_the_last_word_of_a_key_is_what_suggests(suggests):
    name = SUGGESTED[suggests][0][0]
    assert suggests(f"model.{name}")
    assert suggests(f"parts['{name}']")
    assert not suggests(f"{name}.model")


BUILT = {
    names.builds_optimizer: (
        [
            *(
                "AdamW",
                "Adam",
                "SGD",
                "Lion",
                "LAMB",
                "LARS",
                "Adafactor",
                "Adagrad",
                "Adadelta",
                "Adamax",
                "NAdam",
                "RAdam",
            ),
            *(
                "RMSprop",
                "Prodigy",
                "CAME",
                "Sophia",
                "Muon",
                "Shampoo",
                "DAdaptAdam",
                "DAdaptLion",
                "AdamMini",
                "ApolloAdamW",
            ),
            *("GaLoreAdamW", "AdamW8bit", "PagedAdamW", "PagedAdamW8bit", "Lion8bit", "LionW", "torch.optim.SGD"),
            *("DeepSpeedOptimizer", "get_optimizer", "adamw8bit"),
        ],
        ["Madam", "SGDLike", "get_optimizer_scheduler", "OptimLR", "Million", "Apolloniusx.Model", "xLion"],
    ),
    names.builds_scheduler: (
        ["get_scheduler", "LRScheduler", "StepLR", "CosineAnnealingWarmRestarts", "get_cosine_schedule"],
        ["LRFinder", "WarmRestartsX", "AdamW"],
    ),
    names.builds_ema: (
        [
            *("EMA", "EMAModel", "ModelEMA", "EmaModel", "MovingAverage", "ExponentialMovingAverage", "AveragedModel"),
            "ModelAverager",
        ],
        ["Emanate.Model", "EMAil", "ema_step", "SchEma", "Average"],
    ),
    names.builds_accelerator: (
        ["Accelerator", "accelerate.Accelerator"],
        ["MyAccelerator", "accelerator", "Accelerators"],
    ),
    names.builds_bar: (["tqdm", "tqdm.auto.tqdm", "ProgressBar", "Progress", "trange_pbar"], ["trange", "Barrier"]),
}


@pytest.mark.parametrize(
    ("builds", "name", "answer"),
    [
        (test, name, answer)
        for test, lists in BUILT.items()
        for answer, each in zip((True, False), lists, strict=True)
        for name in each
    ],
)
def test_what_a_call_builds(builds, name, answer):
    assert builds(expression(f"{name}(1)")) is answer


@pytest.mark.parametrize("builds", BUILT)
def test_a_class_that_is_not_called_builds_nothing(builds):
    assert not builds(expression(BUILT[builds][0][0]))
    assert not builds(None)


@pytest.mark.parametrize(
    ("text", "found"),
    [("step", 1), ("a.step", 1), ("my_step step", 1), ("steps", 0), ("step_1", 0), ("(step)+step", 2)],
)
def test_a_word_is_found_whole(text, found):
    assert len(re.findall(names.word_pattern("step"), text)) == found


def test_a_word_can_be_asked_not_to_stand_behind_a_dot():
    assert re.findall(names.word_pattern("step", r"[\w.]"), "a.step") == []
    assert re.findall(names.word_pattern("a.b"), "axb a.b") == ["a.b"]
