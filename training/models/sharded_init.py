"""Build a model without ever holding it whole: its parameters are on the meta device, and of the values that its
constructor gives them this rank keeps its own rows.

A parameter's rows on any number of ranks are those of the model that is built whole with the same seed: each operation
that fills a parameter (nn.init's, a copy from a file) runs on a whole tensor of that one parameter in memory, with the
same random numbers, and all but this rank's rows are dropped. So it takes as long as building the model whole does: the
random numbers come one after the other. Only one parameter is whole at a time.

accelerate's init_empty_weights also puts parameters on the meta device, but drops their values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakIdKeyDictionary

from training.parallel.shard import Shard


class ShardedInit(TorchDispatchMode):
    """While it is active, every new parameter goes to the meta device, and what fills one is done to this rank's
    rows."""

    def __init__(self, shard: Shard, *, keep: bool = True) -> None:
        """Without `keep` no values are made: where others are loaded afterwards."""
        super().__init__()
        self.shard, self.keep = shard, keep
        self._held: dict[int, tuple[Tensor, Tensor]] = {}  # a meta parameter's storage -> the parameter, own rows
        self._replaced = WeakIdKeyDictionary()  # a constructor's parameter -> the one on the meta device
        self._register: Callable[..., None] = nn.Module.register_parameter

    def __enter__(self) -> ShardedInit:
        original = self._register

        def register(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
            original(module, name, parameter if parameter is None else self._deferred(parameter))

        nn.Module.register_parameter = register
        nn.init.orthogonal_ = _refuse  # which does nothing on the meta device, and does not say so
        super().__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        nn.Module.register_parameter = self._register
        nn.init.orthogonal_ = _ORTHOGONAL
        super().__exit__(kind, error, trace)

    def rows(self, model: nn.Module) -> dict[str, Tensor]:
        """This rank's rows of each of the model's parameters, by name; nothing without `keep`."""
        if not self.keep:
            return {}
        return {name: self._held[_storage(p)][1] for name, p in model.named_parameters()}

    def _deferred(self, parameter: nn.Parameter) -> nn.Parameter:
        if parameter.is_meta:
            return parameter
        if parameter not in self._replaced:
            meta = nn.Parameter(torch.empty(parameter.shape, dtype=parameter.dtype, device="meta"))
            meta.requires_grad_(parameter.requires_grad)
            rows = self.shard.of(parameter.detach()) if self.keep else parameter.detach()[:0]
            self._held[_storage(meta)] = meta, rows.clone()
            self._replaced[parameter] = meta
        replaced: nn.Parameter = self._replaced[parameter]
        return replaced

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        rest = dict(kwargs or {})
        if rest.get("device") == torch.device("meta") and func is not torch.ops.aten.empty.memory_format:
            return func(*args, **{**rest, "device": torch.device("cpu")})  # the value in `parameter[3] = value`
        first = args[0] if args else None
        if not (isinstance(first, Tensor) and first.is_meta):
            if any(isinstance(value, Tensor) and value.is_meta for value in args) and _writes(func):
                raise NotImplementedError(f"{func} with a parameter's values: a rank has only some of its rows")
            return func(*args, **rest)
        held = self._held.get(_storage(first))
        if func is torch.ops.aten.clone.default and held:
            return _view(self._whole(*held), first).clone()  # of other ranks' rows the values are arbitrary
        if not _writes(func):
            return func(*args, **rest)  # a view
        if held is None or any(isinstance(value, Tensor) and value.is_meta for value in args[1:]):
            raise NotImplementedError(
                f"{func} of a tensor on the meta device: a rank has only some of a parameter's rows"
            )
        if not self.keep:
            return first
        whole = self._whole(*held)
        func(_view(whole, first), *args[1:], **rest)
        held[1].copy_(self.shard.of(whole))
        return first

    def _whole(self, meta: Tensor, rows: Tensor) -> Tensor:
        """A tensor of the parameter's shape with this rank's rows in place; the others are arbitrary."""
        whole = torch.empty(meta.shape, dtype=meta.dtype)
        self.shard.of(whole).copy_(rows)
        return whole


_ORTHOGONAL = nn.init.orthogonal_


def _refuse(*_: Any, **__: Any) -> Tensor:
    raise NotImplementedError("nn.init.orthogonal_: a rank has only some of a parameter's rows")


def _writes(func: Any) -> bool:
    """Whether an operator changes its first argument."""
    arguments = func._schema.arguments
    return bool(arguments and arguments[0].alias_info is not None and arguments[0].alias_info.is_write)


def _storage(tensor: Tensor) -> int:
    """What a tensor and its views have in common."""
    return int(tensor.untyped_storage()._cdata)


def _view(whole: Tensor, like: Tensor) -> Tensor:
    """The view of a whole parameter that `like` is of the same parameter on the meta device."""
    return whole.as_strided(like.shape, like.stride(), like.storage_offset())
