"""Averages of a model's weights that are kept while it trains, and move only when an update was applied.

An average remembers the applied step it last saw. Told the same step again, it changes nothing, bit for bit; told
late, it weighs the model as if it had been told every step. So `ema.update(accelerator.applied_step)` is right
wherever it stands, and however often it runs.

Example:
    ema = EMA(model, decay=0.999)
    for batch in loader:
        ...
        ema.update(accelerator.applied_step)
    with ema.averaged_weights():
        evaluate(model)
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ..arguments import whole
from . import distributed
from .clock import Clock, Reading
from .dtypes import dtype_of
from .evaluation import Evaluation
from .parameters import Model, ParameterSet
from .snapshot_writer import Job, write_snapshots
from .state import check_state
from .storage import Storage
from .weighting import DecayWeighting, Weighting


class Average(Evaluation):
    """What EMA and PostHocEMA have in common.

    Args (of both):
        model: a module, or its parameters, with or without names. Trainable parameters are averaged, tied ones once;
            frozen ones are not, unless include_frozen. Files that are written of a module hold frozen parameters and
            buffers as well; of an adapter, such as LoRA, give only the named parameters that are trained.
        dtype: of the averages; None for the parameters' own, but float32 where those have 16 bits, since an average
            kept in 16 bits does not move.
        device: of the averages, "cpu" to keep them off the accelerator; None for where the parameters are.
    """

    def __init__(
        self,
        model: Model,
        weighting: Weighting,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        include_frozen: bool = False,
    ):
        self.parameters = ParameterSet(model, include_frozen)
        self._weighting = weighting
        self._storage = Storage(self.parameters.averaged, weighting.num_averages, dtype, device)
        self._clock = Clock(weighting)

    @property
    def t(self) -> int:
        """Time of the averages: applied updates, or images where `update` is given `n`. Asks the device if need be."""
        return self._clock.read().now

    @property
    def step(self) -> int:
        """Applied updates seen."""
        return self._clock.read().step

    def update(self, t: int | torch.Tensor, *, n: int | torch.Tensor | None = None) -> None:
        """Take in what the applied updates since the last call have changed; nothing if there were none.

        With a tensor `t`, whether anything is new is decided on the tensor's device, and nothing waits for it.

        Args:
            t: the applied step, such as `accelerator.applied_step`. Skipped updates must not be counted.
            n: images (or tokens, ...) an applied update used. The averages' time then counts those; from the first
                update on or not at all.
        Raises: ValueError if t went back; ParameterSetError naming parameters that were added, removed or reshaped.
        """
        if self._stored is not None:
            raise RuntimeError("the model holds lent weights, which must not be averaged: call `restore` first")
        self._look()
        if isinstance(t, torch.Tensor):
            self._storage.move_if(*self._clock.advance_on_device(t, n))
            return
        images = None if n is None else whole("n", n, 1)
        if (move := self._clock.advance(whole("t", t, 0), images)) is not None:
            self._storage.move(move)

    def _look(self) -> None:
        if not self.parameters.is_unchanged():
            self.parameters.look_again()
        self._storage.bind(self.parameters.averaged)

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> None:
        """Move the averages to another device, or give them another dtype."""
        self._storage = self._storage.to(self.parameters.averaged, dtype, device)

    def state_dict(self) -> dict[str, Any]:
        """Everything an exact continuation needs: tensors and plain values, for `torch.load(weights_only=True)` too.

        Tensors are references to the averages. Of a sharded model every process must call this; the first one gets
        whole tensors, on the CPU, the others their own parts. `load_state_dict` takes either.
        """
        self._look()
        return self._settings() | {"clock": self._clock.state_dict(), "averages": self._states(gather=True)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue exactly where `state_dict` was taken.

        Raises: ValueError saying all that differs; nothing is loaded then.
        """
        self._look()
        mine = self._states(gather=False)
        theirs = check_state(state, self._settings(), mine, self.parameters.averaged)
        clock = Reading.checked(state["clock"])
        with torch.no_grad():
            for own, loaded in zip(mine, theirs, strict=True):
                for name, tensor in loaded.items():
                    own[name].copy_(tensor)
        self._clock.set(clock)

    def _states(self, gather: bool) -> list[dict[str, torch.Tensor]]:
        states = [self._storage.averages(index) for index in range(self._weighting.num_averages)]
        if not (gather and self.parameters.is_sharded):
            return states
        for state in states:
            for name, parameter in self.parameters.averaged.items():
                gathered = distributed.gathered(state[name], parameter)
                if distributed.rank() == 0:
                    state[name] = gathered.cpu()
        return states

    def _settings(self) -> dict[str, Any]:
        """What a state must have in common with these averages."""
        return {"kind": type(self).__name__}


class EMA(Average):
    """One exponential average, with the argument names of Diffusers' EMAModel.

    The average starts at the first applied update after update_after_step, as a copy of the model.

    Args:
        decay: what the average is multiplied by at every applied update.
        use_ema_warmup: None, the default, for that decay from the start; True for 1 - (1 + step / inv_gamma)^-power;
            False for EMAModel's (1 + step) / (10 + step). All are held between min_decay and decay.
    Example:
        ema = EMA(model, decay=0.9999, use_ema_warmup=True, power=0.75)
    """

    def __init__(
        self,
        model: Model,
        decay: float = 0.9999,
        min_decay: float = 0.0,
        update_after_step: int = 0,
        use_ema_warmup: bool | None = None,
        inv_gamma: float = 1.0,
        power: float = 2 / 3,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        include_frozen: bool = False,
    ):
        self.weighting = DecayWeighting(decay, min_decay, update_after_step, use_ema_warmup, inv_gamma, power)
        super().__init__(model, self.weighting, dtype=dtype, device=device, include_frozen=include_frozen)

    def update(self, t: int | torch.Tensor, *, n: None = None) -> None:  # type: ignore[override]
        """See `Average.update`; a decay is one of updates, so that there is no `n`."""
        if n is not None:
            raise ValueError("a decay is per update: EMA takes no `n`; PostHocEMA can count images")
        super().update(t)

    def averages(self, sigma_rel: float | None = None) -> dict[str, torch.Tensor]:
        if sigma_rel is not None:
            raise ValueError(f"an EMA has a decay and no `sigma_rel`, got sigma_rel={sigma_rel}")
        return self._storage.averages(0)

    def save(self, path: str | os.PathLike[str], dtype: torch.dtype | str = torch.float32) -> Path:
        """Write the averaged model as one safetensors file, under the model's own tensor names.

        Of a sharded model every process must call this.
        Raises: ValueError unless the name ends in .safetensors; FileExistsError rather than overwrite a file;
            SnapshotError naming tensors with NaN.
        """
        path = Path(path)
        if path.suffix != ".safetensors":
            raise ValueError(f"`path` must end in .safetensors, got {path}")
        self._look()
        path.parent.mkdir(parents=True, exist_ok=True)
        metadata = {"format": "pt", "step": str(self.step), "decay": f"{self.weighting.decay:.17g}"}
        write_snapshots(self.parameters, [Job(path, self.averages(), metadata)], dtype_of(dtype))
        return path

    def _settings(self) -> dict[str, Any]:
        return super()._settings() | dataclasses.asdict(self.weighting)
