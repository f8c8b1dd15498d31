"""The memory of the averages, and the one pass over the parameters that moves them all.

Averages of one dtype lie in one flat tensor an average. An update goes through them in pieces small enough to stay in
the processor's cache, so that a second average costs a read and a write of its own memory, not a second read of the
model. Small parameters are gathered into a piece first; so are parameters of another dtype or device.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from . import distributed
from .parameters import ParameterSetError, changed, reshaped
from .weighting import Move

SMALL, PIECE = 1 << 11, 1 << 18
"""Elements up to which a parameter is gathered, and of a piece (1 MB in float32), on a CPU."""
SMALL_ON_DEVICE, PIECE_ON_DEVICE = 1 << 20, 1 << 24
"""The same on a device, where a launch costs more than a copy."""

EXPONENT_BITS = 0x7F800000
"""Of a float32: what is left when all others are cleared is the power of two at or below the number."""


@dataclass(frozen=True)
class Span:
    """Where one parameter lies in its group: from element `start` on, with its dimensions in the order `order`."""

    start: int
    shape: tuple[int, ...]
    order: tuple[int, ...]
    strides: tuple[int, ...]

    @classmethod
    def of(cls, part: torch.Tensor, start: int) -> Span:
        """The place of a parameter, in the order that its memory has."""
        order, strides, stride = _memory_order(part), [0] * part.dim(), 1
        for dim in reversed(order):
            strides[dim] = stride
            stride *= max(1, part.shape[dim])
        return cls(start, tuple(part.shape), order, tuple(strides))

    def view(self, flat: torch.Tensor) -> torch.Tensor:
        """The average of the parameter, in its shape."""
        return flat.as_strided(self.shape, self.strides, self.start)


def _memory_order(part: torch.Tensor) -> tuple[int, ...]:
    """The order of dimensions in which the tensor's memory is one stretch (channels last, for example), if any."""
    strides = part.stride()
    order = tuple(sorted(range(part.dim()), key=lambda dim: (-strides[dim], dim)))
    return order if part.permute(order).is_contiguous() else tuple(range(part.dim()))


@dataclass(frozen=True)
class Piece:
    """Stretches of each average, and where their parameters are read: in place, or gathered into one place first."""

    averages: tuple[list[torch.Tensor], ...]
    sources: list[torch.Tensor]
    places: list[torch.Tensor]
    parts: list[torch.Tensor]

    def gather(self) -> None:
        if self.parts:
            torch._foreach_copy_(self.places, self.parts)


class Group:
    """All averages of one dtype on one device."""

    def __init__(
        self, parameters: Mapping[str, torch.Tensor], num_averages: int, dtype: torch.dtype, device: torch.device
    ):
        on_cpu = device.type == "cpu"
        self.small, self.piece = (SMALL, PIECE) if on_cpu else (SMALL_ON_DEVICE, PIECE_ON_DEVICE)
        self.dtype = dtype
        self.work = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
        self.spans: dict[str, Span] = {}
        at = 0
        for name, part in sorted(parameters.items(), key=lambda item: item[1].numel() > self.small):
            self.spans[name] = Span.of(part, at)
            at += part.numel()
        self.flats = [torch.empty(at, dtype=dtype, device=device) for _ in range(num_averages)]
        size = min(at, self.piece)
        self.gathered = torch.empty(size, dtype=self.work, device=device)
        for name, part in parameters.items():
            for flat in self.flats:
                self.spans[name].view(flat).copy_(part)
        self.bind(parameters)

    def bind(self, parameters: Mapping[str, torch.Tensor]) -> None:
        """Look at the memory where the parameters lie now."""
        self.pieces: list[Piece] = []
        stretches = [s for name, span in self.spans.items() for s in self._stretches(span, parameters[name])]
        waiting: list[tuple[int, torch.Tensor]] = []
        num = 0
        for start, part in stretches:
            if waiting and num + part.numel() > self.piece:
                self._add(waiting)
                waiting, num = [], 0
            waiting.append((start, part))
            num += part.numel()
        self._add(waiting)

    def _stretches(self, span: Span, parameter: torch.Tensor) -> Iterator[tuple[int, torch.Tensor]]:
        """A parameter cut up into what fits a piece, each with its start. What has holes is cut by whole rows."""
        part = parameter.permute(span.order)
        if part.numel() <= self.small:
            if part.numel():
                yield span.start, part
            return
        rows = part.view(-1) if part.is_contiguous() else part
        lead = math.prod(rows.shape[1:])
        step = max(1, self.piece // lead)
        yield from ((span.start + row * lead, rows[row : row + step]) for row in range(0, rows.shape[0], step))

    def _add(self, stretches: list[tuple[int, torch.Tensor]]) -> None:
        """One piece of neighbouring stretches: read in place where possible, the others gathered in one place."""
        size = sum(part.numel() for _, part in stretches)
        if size > self.gathered.numel():
            self.gathered = torch.empty(size, dtype=self.work, device=self.gathered.device)
        runs: list[list[int]] = []  # start, size, and place in `gathered`, of neighbours that are gathered
        direct, places, parts, used = [], [], [], 0
        for start, part in stretches:
            if self._is_read_in_place(part):
                direct.append((start, part.numel(), part.view(-1)))
                continue
            if runs and sum(runs[-1][:2]) == start:
                runs[-1][1] += part.numel()
            else:
                runs.append([start, part.numel(), used])
            places.append(self.gathered[used : used + part.numel()].view(part.shape))
            parts.append(part)
            used += part.numel()
        sources = [(start, num, self.gathered[at : at + num]) for start, num, at in runs] + direct
        averages = tuple([flat[start : start + num] for start, num, _ in sources] for flat in self.flats)
        self.pieces.append(Piece(averages, [source for _, _, source in sources], places, parts))

    def _is_read_in_place(self, part: torch.Tensor) -> bool:
        alike = part.dtype == self.work and part.device == self.gathered.device and part.is_contiguous()
        return alike and part.numel() > self.small

    def move(self, move: Move) -> None:
        """average += weight * (model - average), for each average."""
        for piece in self.pieces:
            piece.gather()
            for averages, weight in zip(piece.averages, move.weights, strict=True):
                if self.dtype == self.work and not move.dither:
                    torch._foreach_lerp_(averages, piece.sources, float(weight))
                    continue
                for average, source in zip(averages, piece.sources, strict=True):
                    source = self._dithered(source, average, move.dither / weight)
                    if self.dtype == self.work:
                        average.lerp_(source, float(weight))
                    else:
                        average.copy_(average.to(self.work).lerp_(source, float(weight)))

    def move_if(self, due: torch.Tensor, move: Move) -> None:
        """The same by tensors on a device; where `due` () is false, no bit changes. No device is waited for."""
        device = self.gathered.device
        due, weights = due.to(device), torch.as_tensor(move.weights)
        dithers = (move.dither / torch.where(weights > 0, weights, 1.0)).to(self.work).to(device).unbind()
        weights = weights.to(self.work).to(device)  # in this order: MPS has no float64
        for piece in self.pieces:
            piece.gather()
            for averages, weight, dither in zip(piece.averages, weights.unbind(), dithers, strict=True):
                for average, source in zip(averages, piece.sources, strict=True):
                    shifted = self._dithered(source, average, dither)
                    scratch = None if shifted is source else shifted  # which is read in place, and by the next average
                    moved = torch.lerp(average.to(self.work), shifted, weight, out=scratch).to(self.dtype)
                    torch.where(due, moved, average, out=average)

    def _dithered(self, source: torch.Tensor, average: torch.Tensor, amount: float | torch.Tensor) -> torch.Tensor:
        """The source, shifted by an amount in units of the last place of each element of the average."""
        if self.dtype != torch.float32:
            return source
        unit = (average.view(torch.int32) & EXPONENT_BITS).view(torch.float32).mul_(2.0**-23)
        return unit.mul_(amount).add_(source)


class Storage:
    """The averages of named parameters: their memory, as views by name, and what moves them.

    Args:
        parameters: the parts that this process holds (`distributed.local`); the averages start as copies of them.
        dtype: of the averages; None for that of each parameter, float32 where that has 16 bits.
        device: of the averages; None for that of each parameter.
    """

    def __init__(
        self,
        parameters: Mapping[str, torch.Tensor],
        num_averages: int,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ):
        self._names, self._num = list(parameters), num_averages
        self._dtype, self._device = dtype, None if device is None else torch.device(device)
        with torch.no_grad():
            parts = self._parts(parameters)
            kinds: dict[tuple[torch.dtype, torch.device], dict[str, torch.Tensor]] = {}
            for name, part in parts.items():
                kinds.setdefault(self._kind(part), {})[name] = part
            self.groups = [Group(members, num_averages, *kind) for kind, members in kinds.items()]
        self._pointers = [part.data_ptr() for part in parts.values()]

    def _parts(self, parameters: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        parts = {name: distributed.local(parameter) for name, parameter in parameters.items()}
        self._complex = {name for name, part in parts.items() if part.is_complex()}
        return {name: torch.view_as_real(part) if part.is_complex() else part for name, part in parts.items()}

    def _kind(self, part: torch.Tensor) -> tuple[torch.dtype, torch.device]:
        dtype = self._dtype or (part.dtype if part.dtype.itemsize >= 4 else torch.float32)
        return dtype, self._device or part.device

    @torch.no_grad()
    def to(
        self, parameters: Mapping[str, torch.Tensor], dtype: torch.dtype | None, device: torch.device | str | None
    ) -> Storage:
        """The same averages in another dtype or on another device; what is None stays as it was asked for."""
        moved = Storage(parameters, self._num, dtype or self._dtype, device if device is not None else self._device)
        for index in range(self._num):
            old = self.averages(index)
            for name, average in moved.averages(index).items():
                average.copy_(old[name])
        return moved

    @torch.no_grad()
    def bind(self, parameters: Mapping[str, torch.Tensor]) -> None:
        """Follow parameters whose memory has moved. Costs a lookup a parameter when none has."""
        tensors = [distributed.local(p) if distributed.is_sharded(p) else p for p in parameters.values()]
        pointers = [tensor.data_ptr() for tensor in tensors]
        if pointers != self._pointers:
            parts = self._parts(parameters)
            before = {name: span.shape for group in self.groups for name, span in group.spans.items()}
            if problems := reshaped(before, {name: tuple(part.shape) for name, part in parts.items()}):
                raise ParameterSetError(changed(problems))
            for group in self.groups:
                group.bind(parts)
            self._pointers = pointers

    @torch.no_grad()
    def move(self, move: Move) -> None:
        """average += weight * (model - average), in one pass for all averages."""
        for group in self.groups:
            group.move(move)

    @torch.no_grad()
    def move_if(self, due: torch.Tensor, move: Move) -> None:
        """The same, where a tensor () decides whether."""
        for group in self.groups:
            group.move_if(due, move)

    def averages(self, index: int) -> dict[str, torch.Tensor]:
        """The averages by name, as views of the memory that updates move."""
        views = {name: span.view(group.flats[index]) for group in self.groups for name, span in group.spans.items()}
        return {
            name: torch.view_as_complex(views[name]) if name in self._complex else views[name] for name in self._names
        }
