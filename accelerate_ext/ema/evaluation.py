"""Lending averages to a model for evaluation, and giving the model its own weights back."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

import torch
from torch import nn

from . import distributed
from .parameters import Model, ParameterSet, buffers, unwrap


class Evaluation:
    """`copy_to`, `store` and `restore` as in Diffusers' EMAModel, and a context manager that does the three."""

    parameters: ParameterSet
    _stored: dict[str, torch.Tensor] | None = None

    def averages(self, sigma_rel: float | None = None) -> dict[str, torch.Tensor]:
        """The averages by parameter name: live memory of this process's parts. Clone what must not move."""
        raise NotImplementedError

    @torch.no_grad()
    def copy_to(self, parameters: Model | None = None, *, sigma_rel: float | None = None) -> None:
        """Write an average into a model, rounded to the model's dtype.

        Another model than the averaged one also gets the frozen parameters and buffers, so that it is complete. If one
        of the two is sharded and the other is not, or is in another way, every process must call this.

        Args:
            parameters: a module, its parameters, or None for the model that is averaged.
            sigma_rel: which average, where several are kept; the first unless given.
        Raises: ParameterSetError naming parameters that are missing or have another shape; nothing is written then.
        """
        targets = self.parameters.targets(parameters)
        for name, average in self.averages(sigma_rel).items():
            distributed.copy_into(targets[name], average, self.parameters.averaged[name])
        is_other = isinstance(parameters, nn.Module) and unwrap(parameters) is not self.parameters.module
        if is_other and isinstance(parameters, nn.Module):
            held = targets | dict(buffers(unwrap(parameters)))
            for name, tensor in self.parameters.copied().items():
                if name in held and held[name].shape == tensor.shape:
                    distributed.copy_into(held[name], distributed.local(tensor), tensor)

    @torch.no_grad()
    def store(self, parameters: Model | None = None) -> None:
        """Keep a copy of the model's weights, on the CPU, until `restore`.

        Raises: RuntimeError if weights are stored already, which would be lost.
        """
        if self._stored is not None:
            raise RuntimeError("weights are stored already, and would be lost: call `restore` first")
        targets = self.parameters.targets(parameters)
        self._stored = {
            name: distributed.local(targets[name]).to("cpu", copy=True) for name in self.parameters.averaged
        }

    @torch.no_grad()
    def restore(self, parameters: Model | None = None) -> None:
        """Write the weights that `store` kept back, bit for bit, and forget them.

        Raises: RuntimeError if nothing is stored.
        """
        if self._stored is None:
            raise RuntimeError("there are no stored weights to restore: call `store` first; each is restored once")
        targets = self.parameters.targets(parameters)
        for name, kept in self._stored.items():
            distributed.local(targets[name]).copy_(kept)
        self._stored = None

    @contextlib.contextmanager
    def averaged_weights(self, sigma_rel: float | None = None) -> Iterator[Mapping[str, torch.Tensor]]:
        """Inside, the averaged model has the average as its weights; after it, its own, whatever happened.

        Example:
            with ema.averaged_weights():
                loss = evaluate(model)
        """
        self.store()
        try:
            self.copy_to(sigma_rel=sigma_rel)
            yield self.averages(sigma_rel)
        finally:
            self.restore()
