"""What a person needs to write the pull requests of the two series; it becomes part of their NOTES.md."""

NOTES = """\
## What is wrong

`TrainerState.global_step` is documented as the number of update steps completed. The Trainer counts attempts: a
step that the gradient scaler skips is counted, fires `on_optimizer_step` and `on_step_end`, and is logged,
evaluated and saved. Only the scheduler waits. Issues: huggingface/diffusers#15112, huggingface/transformers#10330,
huggingface/transformers#11106, #13758, #14531, #23935 and #34053.

## Observed

CPU, torch 2.13.0, Accelerate 1.15.0; `torch.amp.GradScaler("cpu")` with its default scale of 65536; `max_steps=6`,
six batches, infinite gradients in the third attempt. "Applied" is what AdamW itself counts: it takes a dropped
update back.

| optimizer | Transformers | Accelerate | attempts | applied | `global_step` |
|---|---|---|---|---|---|
| `adamw_torch` | 5.24.0 | 1.15.0 | 6 | 5 | 6 |
| `adamw_torch` | patched | 1.15.0 | 7 | 6 | 6 |
| `adamw_torch_fused` (default) | 5.24.0 | 1.15.0 | 6 | 5 | 6 |
| `adamw_torch_fused` | patched | 1.15.0 | 6 | 5 | 6 |
| `adamw_torch_fused` | patched | patched | 7 | 6 | 6 |

The fourth row is why the series for Accelerate belongs with this one: without it fused optimizers report no skip.
On the unpatched release the log of step 3 has `grad_norm` inf and the loss of an attempt that changed nothing. Two
gloo processes, overflow in the second one only, attempts 3 and 6: both end at 6 updates in 8 attempts with the same
weights and the checkpoints 2, 4, 6.

## What is decided

- No event for a skipped step. `on_substep_end` would mean "still accumulating"; a callback that steps an optimizer
  there would fail. Callbacks can look at `state.num_skipped_steps`.
- `max_steps` counts updates and adds epochs for skips, never more than they need: a callback that cuts epochs short
  still shortens the run. Epochs are gone through as often as asked, and `state.max_steps` falls by one for each
  skip.
- The counters are in `trainer_state.json` only if they are not zero. A run without skips writes the same bytes as
  before; an older release cannot load the state of a run with skips (an unknown key, as with `best_global_step`).
- After 100 skips in a row training ends with an error in the log, as an early stop does: no exception, so that a
  hyperparameter search goes on with its next trial. The last checkpoint is the one before, as with an early stop.
  40 halvings bring a scale of 2**40 down; from 2**16, after 144, the reciprocal of the scale is infinite in
  float32, which torch does not notice, and the next finite step makes the weights infinite.
- A stream ends as it did, except that one which can be read only once and had enough data for all attempts ends the
  run with its last step saved instead of the ValueError of Accelerate's dispatcher.
- The loss of an attempt is taken back from a copy that is made before it. Summing up attempts apart would change
  the order of the additions, and with it the last bits of logs without skips.

## Commands

    python -m pytest -c tests/trainer/suite/pytest.ini tests/trainer/suite        # whichever release is imported
    python -m pytest tests/trainer                                                # patched and unpatched copies
    TRAINER_MUTANTS=all python -m pytest tests/trainer/test_mutants.py            # each line broken on purpose
    ruff check src/transformers && ruff format --check src/transformers           # 0.14.10, 119 columns

The suite has about 370 cases. Those marked `finite` skip nothing and pass on both; every other one fails on the
unpatched releases. Weights, logs, events and the files of all checkpoints of 22 runs without skips are the same to
the bit, from the first patch on.

## What was left out, and why

- 5.0.0 and 4.57.6 have the whole loop in one method: no `_run_epoch`, the position of a resumed run inline, a local
  loss that is rebound. They are refused, not half patched. The series is made from 5.17.0, 5.20.1 and 5.23.0 as
  from 5.24.0.
- The scheduler of a run over epochs ends as many steps short of its end as were skipped: its length is fixed before
  the first step. It did so before for optimizers that are not fused.
- A finished run whose last step was inside an epoch trains one more update when it is resumed, on the unpatched
  release too. Here it does not if steps were skipped; without skips it stays as it is, so that such runs are
  identical.
- A finite dataset without length resumes by attempts in one endless epoch, as before: passes are not told apart.
- FLOPs and tokens seen count skipped attempts: they were computed and read. `train_samples_per_second` counts
  samples as before, as a share of `max_steps`.
- A batch group that a dataset without length leaves incomplete at its end keeps its loss in the mean.
- DeepSpeed, FSDP, XLA and CUDA were read and not run. DeepSpeed reports its overflow through the same flag; its
  folders `global_step*` inside a checkpoint go on counting attempts. If ranks disagree about a skip (local shards
  without a reduced flag), they now differ in `global_step` too.
"""

ACCELERATE = """\
## What is wrong

`GradScaler` always calls an optimizer that applies the loss scale itself (fused AdamW and others); its kernel drops
the update. `AcceleratedOptimizer.step_was_skipped` asks whether the step was called and says False then
(huggingface/accelerate#4242). The prepared scheduler is stepped, and training loops count an update that was not
made.

## Observed

CPU, torch 2.13.0, `torch.amp.GradScaler("cpu")`, infinite or NaN gradients; AdamW, Adam, SGD and Adagrad, fused and
not.

| | 1.15.0 | loss scale compared (as in #4243) | this patch |
|---|---|---|---|
| fused: reported when the weights stood still | no | yes | yes |
| scale already 0.0 | no | no | yes |
| backoff factor 1 - 1e-9 (the scale does not change in float32) | no | no | yes |
| two fused optimizers under one scaler: only the bad one | no | blames the good one | yes |
| scale grows in the same update | right | right | right |
| accumulating `step()` after an overflow is not reported | no | no | yes |
| device reads in a fused `step()` | 0 | 2 | 0, and 1 when the flag is first asked |

The scaler sets `optimizer.found_inf` while such an optimizer steps. The wrapper that Accelerate puts round `step`
keeps it; the property makes a bool of it.

## Commands

    python -m pytest -c tests/trainer/suite/pytest.ini tests/trainer/suite/case_accelerate.py
    ACCELERATE_TESTS=all python -m pytest tests/trainer/test_accelerate_own_tests.py
    ruff check src/accelerate && ruff format --check src/accelerate               # 0.13.1, 119 columns

The second runs Accelerate's own tests, from its source release, on the installed and on the patched package: each
test comes out the same.

## What was left out, and why

- With two optimizers and `unscale_gradients()` for both, the second one is unscaled twice: wrong before, not
  touched.
- A fused optimizer loses what tells the scaler to leave the scale to it when it is pickled. That is torch's.
- `DeepSpeedOptimizerWrapper` and the one of Megatron have flags of their own and are not changed.
- CUDA was read, not run. The number of device reads was counted on the CPU.
"""
