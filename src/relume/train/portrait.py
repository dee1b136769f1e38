"""The same tree as `capture` makes, at a fraction of the price where the same objects are captured again and again.

A `state_dict()` builds every name, detaches every tensor, and tells nobody whether anything but the numbers is new. So
a module or optimizer that is PyTorch's own is read directly: a `Sketch` remembers how it was built, in flat lists that
are quickly compared, and where its tensors are found. While it holds, the mirror hears that this part is the one that
it knows (`state.values.Part`), and only the tensors are looked at. What is not PyTorch's own, or is not found where a
state dict has it, is captured as ever.

A sketch keeps modules and names, but no tensor that may be replaced: its memory would be kept with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from operator import attrgetter, is_, not_
from typing import Any

import torch
from torch import nn

from relume.state.tree import Part
from relume.train.capture import OPTIMIZER_HOOKS, assemble, beside
from relume.train.protect import Protected
from relume.train.variables import Vars

_children, _parameters, _buffers = attrgetter("_modules"), attrgetter("_parameters"), attrgetter("_buffers")
_hidden, _training, _version = attrgetter("_non_persistent_buffers_set"), attrgetter("training"), attrgetter("_version")
_requires_grad, _hooks = attrgetter("requires_grad"), attrgetter("_state_dict_hooks", "_state_dict_pre_hooks")
_METHODS = {name: getattr(nn.Module, name) for name in ("state_dict", "_save_to_state_dict", "get_extra_state")}
_OPTIMIZER_METHOD = torch.optim.Optimizer.state_dict
_IN_OPTIMIZERS = frozenset({torch.Tensor, nn.Parameter, type(None)})
"""What a state of PyTorch's own optimizers is made of. Anything else is read anew each time."""


class Portrait:
    """All protected state of one worker, to be captured again and again."""

    def __init__(self, protected: Protected, variables: Vars) -> None:
        self._protected, self._variables = protected, variables
        self._modules: dict[str, ModuleSketch] = {}
        self._optimizers: dict[str, OptimizerSketch] = {}

    def tree(self) -> dict[str, Any]:
        """Return what `capture` returns, with a `Part` for each that is known. It holds until something moves."""
        return assemble(self._protected, self._variables, self._module, self._optimizer)

    def _module(self, name: str, root: nn.Module) -> tuple[Any, Any]:
        sketch = self._modules.pop(name, None)
        if sketch is None or not sketch.holds():
            sketch = ModuleSketch.of(name, root)
        if sketch is None:
            state = root.state_dict()
            return state, beside(root, state)
        self._modules[name] = sketch
        return sketch.parts()

    def _optimizer(self, name: str, optimizer: torch.optim.Optimizer) -> Any:  # noqa: ANN401
        sketch = self._optimizers.pop(name, None)
        if sketch is None or not sketch.holds():
            sketch = OptimizerSketch.of(name, optimizer)
        if sketch is None:
            return optimizer.state_dict()
        self._optimizers[name] = sketch
        return sketch.state_dict()


# Modules ----------------------------------------------------------------------------------------------------


class ModuleSketch:
    """How a module is built. `state` and `hidden` are the numbers of its tensors, in its state dict and beside it."""

    def __init__(
        self, name: str, modules: Sequence[nn.Module], look: tuple[object, ...], state: list[int], hidden: list[int]
    ) -> None:
        self._name, self._modules, self._look = name, modules, look
        self._state, self._hidden = state, hidden

    @classmethod
    def of(cls, name: str, root: nn.Module) -> ModuleSketch | None:
        """Return a sketch of `root`, None if its state dict is not PyTorch's own, or not what is expected of that."""
        visits = [*_visits(root, "")]
        modules = [module for _, module in visits]
        look = _module_look(modules)
        if look is None:
            return None
        paths = [prefix + key for prefix, module in visits for key in _parameters(module)]
        paths += [prefix + key for prefix, module in visits for key in _buffers(module)]
        numbers = {path: number for number, path in enumerate(paths)}
        tensors, state = _tensors(modules), root.state_dict()
        hidden = {path: tensor for path, tensor in beside(root, state)["hidden"].items() if tensor is not None}
        for path, tensor in chain(state.items(), hidden.items()):
            live = tensors[numbers[path]] if path in numbers else None
            if live is None or not _is_detached(tensor, live):
                return None
        return cls(name, modules, look, [numbers[path] for path in state], [numbers[path] for path in hidden])

    def holds(self) -> bool:
        """True if the module is built as it was. Its tensors may be others, and look otherwise."""
        return _module_look(self._modules) == self._look

    def parts(self) -> tuple[Part, Part]:
        """Return its state dict, and what stands beside that."""
        root, tensors, modules = self._modules[0], _tensors(self._modules), self._modules
        parameters = filter(_is_there, chain.from_iterable(map(dict.values, map(_parameters, modules))))
        stamp = (self, [*map(_requires_grad, parameters)])
        state, hidden = ([tensors[number] for number in numbers] for numbers in (self._state, self._hidden))
        return (
            Part(("state", self._name), self, state, root.state_dict, detached=True),
            Part(("beside", self._name), stamp, hidden, lambda: beside(root, root.state_dict()), detached=True),
        )


def _visits(module: nn.Module, prefix: str) -> Iterator[tuple[str, nn.Module]]:
    """Yield modules and their prefixes as `state_dict` comes to them: a shared one by each of its names."""
    yield prefix, module
    for name, child in _children(module).items():
        if child is not None:
            yield from _visits(child, f"{prefix}{name}.")


def _tensors(modules: Sequence[nn.Module]) -> list[Any]:
    """Return all parameters, then all buffers, of which some may be None."""
    holders = chain(map(_parameters, modules), map(_buffers, modules))
    return [*chain.from_iterable(map(dict.values, holders))]


def _module_look(modules: Sequence[nn.Module]) -> tuple[object, ...] | None:
    """Return all that a state dict of `modules`, and what stands beside it, goes by, but for the tensors.

    Two are compared while `modules` live, so that identity tells children apart. None if there is more to it.
    """
    kinds, holders = [*map(type, modules)], []
    if any(getattr(kind, name) is not method for kind in {*kinds} for name, method in _METHODS.items()):
        return None
    if any(chain.from_iterable(map(_hooks, modules))):
        return None
    if not all(map(_METHODS.keys().isdisjoint, map(vars, modules))):
        return None
    for kind in (_children, _parameters, _buffers):
        dicts = [*map(kind, modules)]
        if {*map(type, dicts)} != {dict}:
            return None
        holders += [[*map(len, dicts)], [*chain.from_iterable(dicts)]]
    children = chain.from_iterable(map(dict.values, map(_children, modules)))
    modes = [*map(_training, modules)]
    return (
        kinds,
        *holders,
        [*map(id, children)],
        [*map(not_, map(_is_there, _tensors(modules)))],
        [*map(frozenset, map(_hidden, modules))],
        [*map(type, modes)],
        modes,
        [*map(_version, modules)],
    )


def _is_there(value: object) -> bool:
    return value is not None


def _is_detached(tensor: torch.Tensor, live: torch.Tensor) -> bool:
    """True if `tensor` is `live`, but for its gradient's part."""
    same = tensor.data_ptr() == live.data_ptr() and tensor.dtype == live.dtype and type(tensor) is torch.Tensor
    return same and tensor.shape == live.shape and tensor.stride() == live.stride()


# Optimizers -------------------------------------------------------------------------------------------------


class OptimizerSketch:
    """How an optimizer's state is built. `numbers` are those of each group's parameters in its state dict."""

    def __init__(
        self, name: str, optimizer: torch.optim.Optimizer, look: tuple[object, ...], numbers: list[list[int]]
    ) -> None:
        self._name, self._optimizer, self._look, self._numbers = name, optimizer, look, numbers
        self._owners = [*optimizer.state, *chain.from_iterable(group["params"] for group in optimizer.param_groups)]

    @classmethod
    def of(cls, name: str, optimizer: torch.optim.Optimizer) -> OptimizerSketch | None:
        """Return a sketch of `optimizer`, None if its state dict is not PyTorch's own."""
        look = _optimizer_look(optimizer)
        states = [*optimizer.state.values()]
        if look is None or {*map(type, states)} - {dict} or {*map(type, chain.from_iterable(states))} - {str}:
            return None
        if not _IN_OPTIMIZERS.issuperset(map(type, chain.from_iterable(map(dict.values, states)))):
            return None
        saved = optimizer.state_dict()
        if {*map(type, saved["state"])} - {int} or not all(map(is_, saved["state"].values(), states)):
            return None  # the state of something that is no parameter of its own
        return cls(name, optimizer, look, [group["params"] for group in saved["param_groups"]])

    def holds(self) -> bool:
        """True if it has state of the same kinds for the same parameters."""
        return _optimizer_look(self._optimizer) == self._look

    def state_dict(self) -> dict[str, Any]:
        """Return its state dict. Rates and other settings are read anew: they may change at every step."""
        optimizer = self._optimizer
        values = chain.from_iterable(map(dict.values, optimizer.state.values()))
        part = Part(
            ("state", self._name),
            self,
            [value for value in values if value is not None],
            lambda: optimizer.state_dict()["state"],
            detached=False,
        )
        groups = zip(optimizer.param_groups, self._numbers, strict=True)
        settings = [
            {**{key: value for key, value in group.items() if key != "params"}, "params": numbers}
            for group, numbers in groups
        ]
        return {"state": part, "param_groups": settings}


def _optimizer_look(optimizer: torch.optim.Optimizer) -> tuple[object, ...] | None:
    """Return all that the state in a state dict goes by, but for the tensors; None if there is more to it.

    Two are compared while the parameters live, so that identity tells them apart.
    """
    if type(optimizer).state_dict is not _OPTIMIZER_METHOD or "state_dict" in vars(optimizer):
        return None
    if any(getattr(optimizer, hooks, None) for hooks in OPTIMIZER_HOOKS):
        return None
    parameters = [group["params"] for group in optimizer.param_groups]
    states = [*optimizer.state.values()]
    return (
        [*map(id, optimizer.state)],
        [*map(len, parameters)],
        [*map(id, chain.from_iterable(parameters))],
        [*map(type, states)],
        [*map(len, states)],
        [*chain.from_iterable(states)],
        [*map(type, chain.from_iterable(map(dict.values, states)))],
    )
