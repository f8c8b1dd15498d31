"""Schedulers behind the step."""

NOT = "not (accelerator.sync_gradients and accelerator.optimizer_step_was_skipped)"


def test_a_prepared_scheduler_stays(make_loop):
    assert "prepared-scheduler" in make_loop(prepared="optimizer, scheduler").stays("scheduler.step()")


def test_one_that_was_not_prepared_keeps_its_steps_between_boundaries(loop):
    assert loop.becomes("scheduler.step()\nx = 1", f"if {NOT}:\n    scheduler.step()\nx = 1")


def test_where_only_boundaries_come_through_the_flag_alone_is_asked(make_loop):
    loop = make_loop(step="if accelerator.sync_gradients:\n    optimizer.step()\n    scheduler.step()\n")
    assert "            if not accelerator.optimizer_step_was_skipped:\n                scheduler.step()\n" in (
        loop.rewrite("").after.decode()
    )


def test_one_that_comes_from_elsewhere_is_left(make_loop):
    loop = make_loop(prepared="optimizer")
    text = loop.source("args.scheduler.step()")
    from tools.rewrite import rewrite

    result = rewrite(text.encode())
    assert result.after == text.encode()
    assert "scheduler-unknown" in {site.code for site in result.sites}


def test_one_whose_optimizer_was_not_prepared_is_refused(make_loop):
    assert "unprepared-optimizer" in make_loop(prepared="loader").stays("scheduler.step()")


def test_a_sampler_is_no_scheduler_of_the_learning_rate(loop):
    assert "scheduler-gated" not in loop.stays("x = noise_scheduler.step(a, b, c)")
