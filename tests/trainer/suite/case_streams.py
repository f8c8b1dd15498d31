"""Datasets without a length: one epoch lasts as long as the stream does."""

from __future__ import annotations

import pytest
from harness import Examples, Stream, train


def ids(run) -> list[int]:
    return [index for attempt in run.attempts for index in attempt.ids]


@pytest.mark.parametrize("once", [False, True])
@pytest.mark.parametrize("overflow", [{2}, {6}, {1, 2, 3, 4, 5, 6, 7}])
def test_an_endless_stream_goes_on_and_is_not_read_from_its_start(overflow, once):
    stream = Stream(once=once)
    run = train(stream, max_steps=6, overflow=overflow)
    total = 6 + len(overflow)
    assert (ids(run), run.state.global_step) == (list(range(total)), 6)
    assert stream.opened == 1
    assert len(run.events("on_epoch_begin")) == 1


def test_an_endless_stream_goes_on_with_accumulation():
    stream = Stream()
    run = train(stream, max_steps=4, overflow={1, 4}, gradient_accumulation_steps=3)
    assert (ids(run), run.state.global_step, stream.opened) == (list(range(18)), 4, 1)


def test_a_finite_stream_is_iterated_again():
    run = train(Stream(4), max_steps=6, overflow={2, 4, 5})
    assert (ids(run), run.state.global_step) == ([0, 1, 2, 3, 0, 1, 2, 3, 0], 6)


def test_a_stream_as_long_as_the_run_is_iterated_again():
    run = train(Stream(6), max_steps=6, overflow={3})
    assert (ids(run), run.state.global_step) == ([0, 1, 2, 3, 4, 5, 0], 6)


def test_a_stream_that_ends_among_the_extra_steps_is_iterated_again():
    run = train(Stream(7), max_steps=6, overflow={3, 4})
    assert (ids(run), run.state.global_step) == ([0, 1, 2, 3, 4, 5, 6, 0], 6)


# Accelerate reads a stream in one process and hands its batches out, or each process reads for itself.
READING = pytest.mark.parametrize("dispatch", [True, False])


@READING
def test_a_stream_that_is_exhausted_for_good_by_skipped_steps_ends_the_training(dispatch):
    run = train(
        Stream(6, once=True),
        max_steps=6,
        overflow={3},
        save_strategy="steps",
        save_steps=100,
        eval_strategy="steps",
        eval_steps=100,
        trainer_options={"eval_dataset": Examples(2)},
        accelerator_config={"dispatch_batches": dispatch},
    )
    assert (ids(run), run.applied) == ([0, 1, 2, 3, 4, 5], 5)
    assert run.state.global_step == run.state.max_steps == 5
    assert run.recorder.saves == run.recorder.evaluations == [5]
    assert any("not to be a single sample" in message and "at step 5" in message for message in run.messages)


@READING
def test_a_stream_that_is_exhausted_among_the_extra_steps_ends_the_training(dispatch):
    config = {"dispatch_batches": dispatch}
    run = train(Stream(7, once=True), max_steps=6, overflow={3, 4, 7}, accelerator_config=config)
    assert (ids(run), run.state.global_step, run.applied) == (list(range(7)), 4, 4)


@READING
def test_a_stream_that_is_too_short_by_itself_ends_the_training(dispatch):
    config = {"dispatch_batches": dispatch}
    run = train(Stream(5, once=True), max_steps=6, overflow={2}, accelerator_config=config)
    assert (ids(run), run.state.global_step, run.state.max_steps) == ([0, 1, 2, 3, 4], 4, 6)
    assert any("not to be a single sample" in message and "at step 4" in message for message in run.messages)


@pytest.mark.finite
def test_an_error_of_the_data_itself_is_not_taken_for_its_end():
    class Broken(Stream):
        def __iter__(self):
            for index, item in enumerate(super().__iter__()):
                if index == 4:
                    raise ValueError("a broken example")
                yield item

    with pytest.raises(ValueError, match="a broken example"):
        train(Broken(), max_steps=6, overflow={2})


@pytest.mark.finite
def test_a_finite_run_over_a_stream_reads_it_as_before():
    assert ids(train(Stream(), max_steps=6)) == [0, 1, 2, 3, 4, 5]
    assert ids(train(Stream(4), max_steps=6)) == [0, 1, 2, 3, 0, 1]
    assert ids(train(Stream(4, once=True), max_steps=6, accelerator_config={"dispatch_batches": False})) == [
        0,
        1,
        2,
        3,
    ]


@pytest.mark.parametrize("accumulation", [1, 2])
def test_each_checkpoint_of_a_stream_resumes_at_its_place(accumulation):
    options = {
        "max_steps": 5,
        "overflow": {2, 5, 6},
        "save_strategy": "steps",
        "save_steps": 1,
        "gradient_accumulation_steps": accumulation,
    }
    whole = train(Stream(), **options)
    assert len(whole.attempts) == 8
    for step, attempts in list(whole.recorder.saved.items())[:-1]:
        place = {"resume": whole.checkpoint(step), "first": attempts, "output_dir": f"again-{step}"}
        again = train(Stream(), **options, **place)
        assert ids(again) == list(range(attempts * accumulation, 8 * accumulation))
        assert again.weights == whole.weights
        assert again.state.global_step == 5


def test_a_stream_that_is_resumed_skips_more_steps_than_were_planned():
    options = {"max_steps": 4, "save_strategy": "steps", "save_steps": 1}
    whole = train(Stream(), overflow={1, 2, 3, 5, 7, 8}, **options)
    stream = Stream()
    place = {"resume": whole.checkpoint(1), "first": 4, "output_dir": "again"}
    again = train(stream, overflow={5, 7, 8}, **options, **place)
    assert whole.recorder.saved[1] == 4
    assert (ids(again), stream.opened) == (list(range(4, 10)), 1)
    assert again.weights == whole.weights
