"""What the script gave to `run.protect`: parameters, buffers, optimizers, and whatever else decides a step.

Everything with `state_dict`/`load_state_dict` may be protected (scenario 5: all that decides a step is protected
state). What has no exact meaning under relume is refused here, by name, with what to do instead.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from relume.errors import ProtectError
from relume.verify.digests import digest

RESERVED = "relume"
"""Under this name, what state dicts leave out stands in kept state, beside the protected objects."""


class Protected:
    """The protected objects, by the names the script gave them."""

    def __init__(self) -> None:
        self.objects: dict[str, Any] = {}

    def add(self, objects: dict[str, Any]) -> None:
        """Add `objects`. Raises `ProtectError` for what cannot be protected."""
        for name, value in objects.items():
            if name in self.objects:
                raise ProtectError(f"protect: {name!r} is protected already; give every object its own name")
            if name == RESERVED:
                raise ProtectError(f"protect: the name {name!r} is relume's own in kept state; choose another")
            _check(name, value)
        self.objects.update(objects)

    @property
    def modules(self) -> dict[str, nn.Module]:
        """The protected modules."""
        return {name: value for name, value in self.objects.items() if isinstance(value, nn.Module)}

    @property
    def optimizers(self) -> dict[str, torch.optim.Optimizer]:
        """The protected optimizers."""
        return {name: value for name, value in self.objects.items() if isinstance(value, torch.optim.Optimizer)}

    @property
    def others(self) -> dict[str, Any]:
        """What is neither a module nor an optimizer: schedulers, scalers, objects of the user's own."""
        known = (nn.Module, torch.optim.Optimizer)
        return {name: value for name, value in self.objects.items() if not isinstance(value, known)}

    def parameters(self) -> list[tuple[str, nn.Parameter]]:
        """Return the named parameters that can get a gradient, tied ones once.

        Parameters of an `AveragedModel` (EMA, SWA) are copies that no loss reaches; they are state, not leaves.
        """
        wanted = {id(p) for optimizer in self.optimizers.values() for p in _of(optimizer)}
        found: dict[int, tuple[str, nn.Parameter]] = {}
        for name, module in self.modules.items():
            averaged = isinstance(module, AveragedModel)
            for path, parameter in module.named_parameters():
                if parameter.requires_grad and (not averaged or id(parameter) in wanted):
                    found.setdefault(id(parameter), (f"{name}.{path}", parameter))
        return list(found.values())

    def sparse(self) -> set[int]:
        """Return the ids of the parameters of layers that say that their gradients are sparse."""
        layers = [
            layer for root in self.modules.values() for layer in root.modules() if getattr(layer, "sparse", False)
        ]
        return {id(parameter) for layer in layers for parameter in layer.parameters(recurse=False)}

    def buffers(self) -> list[tuple[nn.Module, str, str]]:
        """Return (module, name, full name) of every buffer, persistent or not, shared ones once."""
        seen: set[int] = set()
        places: list[tuple[nn.Module, str, str]] = []
        for name, root in self.modules.items():
            for path, module in root.named_modules():
                for key, buffer in module._buffers.items():  # noqa: SLF001  (replaced buffers must be found again)
                    if buffer is not None and id(buffer) not in seen:
                        seen.add(id(buffer))
                        places.append((module, key, ".".join(filter(None, (name, path, key)))))
        return places

    def check_complete(self) -> None:
        """Check that the whole makes sense before the first step. Raises `ProtectError`."""
        if not self.modules:
            text = "nothing is protected that has parameters: call run.protect(model=model, optimizer=optimizer, ...)"
            raise ProtectError(text + " before run.steps()")
        known = {id(p) for module in self.modules.values() for p in module.parameters()}
        for name, optimizer in self.optimizers.items():
            for group_index, group in enumerate(optimizer.param_groups):
                for index, parameter in enumerate(group["params"]):
                    if id(parameter) not in known:
                        raise ProtectError(
                            f"optimizer {name!r} updates a parameter that is not protected (group {group_index}, "
                            f"number {index}, shape {tuple(parameter.shape)}): protect the module that holds it too"
                        )
        if not self.parameters():
            raise ProtectError("no protected parameter requires a gradient: there is nothing to train")

    def wake_scalers(self) -> None:
        """Give every GradScaler its scale now.

        It would make it in its first `scale()`, which a worker without shards does not reach before `unscale_`.
        """
        device = self.parameters()[0][1].device
        for value in self.objects.values():
            if isinstance(value, torch.amp.GradScaler) and value.is_enabled():
                value.scale(torch.zeros((), device=device))

    def state(self) -> dict[str, Any]:
        """Return the whole protected state as nested dicts of tensors and plain values."""
        state = {name: value.state_dict() for name, value in self.objects.items()}
        hidden = {full: module._buffers[key] for module, key, full in self.buffers()}  # noqa: SLF001
        return {**state, "buffers": hidden}

    def terms(self) -> Iterator[str]:
        """Yield a line per parameter and buffer: what must be equal on all workers, value digests included."""
        for name, module in self.modules.items():
            for path, parameter in module.named_parameters():
                yield f"parameter {name}.{path}: {_facts(parameter)} requires_grad={parameter.requires_grad}"
        for module, key, full in self.buffers():
            buffer = module._buffers[key]  # noqa: SLF001
            assert buffer is not None
            yield f"buffer {full}: {_facts(buffer)}"
        for name, optimizer in self.optimizers.items():
            for index, group in enumerate(optimizer.param_groups):
                settings = {key: value for key, value in group.items() if key != "params"}
                yield f"optimizer {name}, group {index}: {type(optimizer).__name__} {settings!r}"


class Trained:
    """Sees to it, before each step, that nothing comes to be trained which has no place in the gradient."""

    def __init__(self, optimizers: Mapping[str, torch.optim.Optimizer], parameters: Sequence[nn.Parameter]) -> None:
        known = {id(parameter) for parameter in parameters}
        self._optimizers = optimizers
        self._known = {name: list(_of(optimizer)) for name, optimizer in optimizers.items()}
        self._asleep = {
            name: [parameter for parameter in known_ones if id(parameter) not in known]
            for name, known_ones in self._known.items()
        }

    def check(self) -> None:
        """Raise `ProtectError` if an optimizer has got a parameter, or one that was frozen is not any more."""
        for name, optimizer in self._optimizers.items():
            before, now = self._known[name], list(_of(optimizer))
            fresh = () if len(now) == len(before) and all(map(operator.is_, now, before)) else now
            same = {id(parameter) for parameter in before} if fresh else set()
            for parameter in (*self._asleep[name], *(other for other in fresh if id(other) not in same)):
                if parameter.requires_grad:
                    raise ProtectError(
                        f"optimizer {name!r} got a parameter of shape {tuple(parameter.shape)} after run.steps() began "
                        "(add_param_group, or requires_grad switched on). Give every parameter that will be trained to "
                        "its optimizer with requires_grad=True before run.steps(), and freeze it until then with "
                        "requires_grad_(False) afterwards"
                    )


def _of(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    for group in optimizer.param_groups:
        yield from group["params"]


def _facts(tensor: torch.Tensor) -> str:
    shape = tuple(tensor.shape)
    return f"{tensor.dtype} {shape} strides {tuple(tensor.stride())} values {digest(tensor)}"


def _check(name: str, value: object) -> None:
    if isinstance(value, nn.parallel.DistributedDataParallel):
        text = f"protect: {name!r} is wrapped in DistributedDataParallel: relume sums the gradients itself."
        raise ProtectError(text + " Protect the module inside (ddp.module) and drop the wrapper")
    if isinstance(value, torch.optim.LBFGS):
        text = f"protect: {name!r} is LBFGS, whose step evaluates the loss again through a closure."
        raise ProtectError(text + " Use an optimizer that steps on gradients")
    if isinstance(value, nn.Module):
        for path, module in value.named_modules():
            where = ".".join(filter(None, (name, path)))
            if isinstance(module, nn.SyncBatchNorm):
                text = f"protect: {where!r} is SyncBatchNorm, whose result depends on who computes together."
                raise ProtectError(text + " Use BatchNorm (its statistics come from shard 0), GroupNorm or LayerNorm")
            if isinstance(module, nn.parallel.DistributedDataParallel):
                raise ProtectError(f"protect: {where!r} is wrapped in DistributedDataParallel: drop the wrapper")
        for path, parameter in value.named_parameters():
            if isinstance(parameter, nn.parameter.UninitializedParameter):
                text = f"protect: {name}.{path} is a lazy parameter without a shape yet."
                raise ProtectError(text + " Run one forward pass before run.protect")
    elif not (callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None))):
        text = f"protect: {name!r} is a {type(value).__name__} without state_dict and load_state_dict."
        raise ProtectError(text + f" Put plain values into run.vars instead (run.vars.{name} = ...)")
