"""All protected state as one tree, and back into the live objects, bit for bit.

Whoever loads the mirror must stand where the others stood. `load_state_dict` alone does not do that: it casts an
optimizer's float32 state to a bfloat16 parameter's dtype, and knows nothing of hidden buffers, of `training` and
`requires_grad` flags, or of memory formats. So parameters, buffers and optimizers are restored tensor by tensor;
`load_state_dict` is called where only the object itself knows what its state means.

This module does not know when state is captured, nor where it is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from relume.errors import StateError
from relume.state.facts import alike
from relume.train import rng
from relume.train.protect import RESERVED, Protected
from relume.train.renew import Renewal
from relume.train.variables import Vars

_OWN_STATE = ("state_dict", "load_state_dict", "_save_to_state_dict", "_load_from_state_dict")
_EXTRA_STATE = ("get_extra_state", "set_extra_state")
_MODULE_HOOKS = (
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
)
OPTIMIZER_HOOKS = tuple(
    f"_optimizer_{what}_{when}_hooks" for what in ("state_dict", "load_state_dict") for when in ("pre", "post")
)


def capture(protected: Protected, variables: Vars) -> dict[str, Any]:
    """Return all protected state; its tensors are the live ones, so it holds until something moves.

    Under each protected object's name stands its `state_dict()`, as PyTorch's users know it. Under "relume": what those
    leave out of modules, `run.vars`, and the random number generators, which the script may use between two steps.
    """

    def of_module(_: str, module: nn.Module) -> tuple[Any, Any]:
        state = module.state_dict()
        return state, beside(module, state)

    return assemble(protected, variables, of_module, lambda _, optimizer: optimizer.state_dict())


def assemble(
    protected: Protected,
    variables: Vars,
    of_module: Callable[[str, nn.Module], tuple[Any, Any]],
    of_optimizer: Callable[[str, torch.optim.Optimizer], Any],
) -> dict[str, Any]:
    """Return the tree of `capture`. It is told how to get an optimizer's state, and a module's with what is beside."""
    tree: dict[str, Any] = {}
    modules: dict[str, Any] = {}
    for name, value in protected.objects.items():
        if isinstance(value, nn.Module):
            tree[name], modules[name] = of_module(name, value)
        elif isinstance(value, torch.optim.Optimizer):
            tree[name] = of_optimizer(name, value)
        else:
            tree[name] = value.state_dict()
    tree[RESERVED] = {"modules": modules, "vars": variables.state_dict(), "rng": _generators()}
    return tree


def restore(protected: Protected, variables: Vars, tree: Mapping[str, Any]) -> None:
    """Make all protected state equal to `tree`, which must be a private copy: parts of it become live.

    Raises `StateError`, which names the object, where the script has built something else than what was captured.
    """
    names, saved_names = [*protected.objects], [name for name in tree if name != RESERVED]
    if sorted(names) != sorted(saved_names):
        raise StateError(f"protected are {', '.join(names)}, and the kept state is of {', '.join(saved_names)}")
    renewal = Renewal()
    for name, other in protected.others.items():  # first, for a scheduler may set its optimizer's rates
        _load(name, other, tree[name])
    for name, module in protected.modules.items():
        _restore_module(name, module, tree[name], tree[RESERVED]["modules"][name])
    for name, optimizer in protected.optimizers.items():
        _restore_optimizer(name, optimizer, tree[name], renewal)
    renewal.mapping(vars(variables), tree[RESERVED]["vars"])
    _set_generators(tree[RESERVED]["rng"])


# Modules ----------------------------------------------------------------------------------------------------


def beside(root: nn.Module, state: Mapping[str, Any]) -> dict[str, Any]:
    """Return what `state`, the module's state dict, leaves out: flags, and tensors that are not there as they are."""
    live = {path: holder[key] for path, holder, key in _places(root)}
    hidden = {path: tensor for path, tensor in live.items() if tensor is None or not _is_same(state.get(path), tensor)}
    return {
        "hidden": {path: tensor if tensor is None else tensor.detach() for path, tensor in hidden.items()},
        "requires_grad": {path: parameter.requires_grad for path, parameter in root.named_parameters()},
        "training": {path: module.training for path, module in root.named_modules()},
    }


def _restore_module(name: str, root: nn.Module, state: Mapping[str, Any], beside: Mapping[str, Any]) -> None:
    hidden, flags, modes = beside["hidden"], beside["requires_grad"], beside["training"]
    modules, parameters = dict(root.named_modules()), dict(root.named_parameters())
    places = {path: (holder, key) for path, holder, key in _places(root)}
    own = _has_own_state(root)
    known = places.keys() if own else {path for path, _, _ in _places(root, shared=True)}
    lost = [path for path in places if path not in hidden and path not in state]
    if (
        lost
        or (not own and state.keys() - known)
        or modules.keys() != modes.keys()
        or parameters.keys() != flags.keys()
    ):
        one_sided = [*lost, *sorted((state.keys() - known) | (modules.keys() ^ modes.keys()))]
        where = ", ".join(one_sided[:3]) or "its parameters"
        raise StateError(f"{name}: the script built another module than the one whose state was kept ({where})")
    for again in (False, True) if own else (True,):
        for path, (holder, key) in places.items():
            _put(f"{name}.{path}", holder, key, hidden[path] if path in hidden else state[path])
        if not again:  # it knows what the rest of its state dict means, and needs tensors of the right shape for it
            kept = dict(root.named_parameters())
            _load(name, root, state)
            if any(parameter is not kept.get(path) for path, parameter in root.named_parameters()):
                raise StateError(
                    f"{name}: its load_state_dict replaced parameters, which its optimizer does not know of"
                )
    for path, parameter in parameters.items():
        parameter.requires_grad_(flags[path])
    for path, module in modules.items():
        module.training = modes[path]


def _places(root: nn.Module, *, shared: bool = False) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yield (path, holder, key) of every parameter and buffer, persistent or not; `shared`: by each of its paths."""
    for prefix, module in root.named_modules(remove_duplicate=not shared):
        for holder in (module._parameters, module._buffers):  # noqa: SLF001  (replaced ones must be found again)
            for key, tensor in holder.items():
                if tensor is not None or holder is module._buffers:  # noqa: SLF001
                    yield (f"{prefix}.{key}" if prefix else key), holder, key


def _put(path: str, holder: dict[str, Any], key: str, saved: Any) -> None:  # noqa: ANN401
    """Give a parameter or buffer the bits of `saved`: in place where it can hold them."""
    live = holder[key]
    if saved is None or live is None or not isinstance(live, nn.Parameter):
        usable = live is not None and saved is not None and alike(live, saved)
        if not usable:
            holder[key] = saved
            return
    elif not alike(live, saved):
        try:
            live.data = saved.detach()  # its shape, dtype or strides were changed in the same way where it comes from
        except RuntimeError as error:
            raise StateError(f"{path} cannot become what was kept: {error}") from error
        return
    with torch.no_grad():
        live.copy_(saved)


def _is_same(saved: object, live: torch.Tensor) -> bool:
    return isinstance(saved, torch.Tensor) and saved.data_ptr() == live.data_ptr() and alike(saved, live)


def _has_own_state(root: nn.Module) -> bool:
    """True if a module of the tree has a state dict of its own making, beyond parameters and buffers by name."""
    for module in root.modules():
        kind = type(module)
        if any(getattr(module, hooks, None) for hooks in _MODULE_HOOKS):
            return True
        if any(getattr(kind, method) is not getattr(nn.Module, method) for method in _EXTRA_STATE):
            return True
        if any(not getattr(kind, method).__module__.startswith("torch.nn.") for method in _OWN_STATE):
            return True
    return False


# Optimizers -------------------------------------------------------------------------------------------------


def _restore_optimizer(name: str, optimizer: torch.optim.Optimizer, saved: Any, renewal: Renewal) -> None:  # noqa: ANN401
    methods = (type(optimizer).state_dict, type(optimizer).load_state_dict)
    hooked = any(getattr(optimizer, hooks, None) for hooks in OPTIMIZER_HOOKS)
    if hooked or any(not method.__module__.startswith("torch.optim.") for method in methods):
        _load(name, optimizer, saved)  # it knows what it has added; the rest is made exact below
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    groups = _standard_groups(saved, len(parameters))
    if groups is None:
        return
    if [len(group["params"]) for group in groups] != [len(group["params"]) for group in optimizer.param_groups]:
        raise StateError(f"{name}: the script built an optimizer with other parameter groups than those that were kept")
    for live, group in zip(optimizer.param_groups, groups, strict=True):
        items = [(key, live[key] if key == "params" else renewal.value(live.get(key), group[key])) for key in group]
        live.clear()
        live.update(items)
    states: dict[Any, Any] = {}
    for key, state in list(saved["state"].items()):
        owner = parameters[key] if type(key) is int and 0 <= key < len(parameters) else key
        states[owner] = renewal.value(optimizer.state.get(owner), state)
    optimizer.state.clear()
    optimizer.state.update(states)


def _standard_groups(saved: Any, parameters: int) -> list[dict[str, Any]] | None:  # noqa: ANN401
    """Return the parameter groups of a state dict in PyTorch's own form; None if it has another."""
    if not isinstance(saved, dict) or not isinstance(saved.get("state"), dict):
        return None
    groups = saved.get("param_groups")
    if not isinstance(groups, list) or not all(isinstance(group, dict) and "params" in group for group in groups):
        return None
    numbers = [number for group in groups for number in group["params"]]
    return groups if numbers and numbers == sorted(numbers) and numbers[-1] < parameters else None


# The rest ---------------------------------------------------------------------------------------------------


def _load(name: str, owner: Any, saved: Any) -> None:  # noqa: ANN401  (anything with a state_dict)
    try:
        owner.load_state_dict(saved)
    except Exception as error:
        text = f"{name}: {type(owner).__name__}.load_state_dict failed on what its state_dict had returned"
        raise StateError(f"{text} ({type(error).__name__}: {error})") from error


def _generators() -> dict[str, Any]:
    """Return where every random number generator stands: as plain values, since workers may differ in them.

    (A script may draw on main alone between two steps. The tensors of a mirror are written by all workers together.)
    """
    state = rng.capture()
    cuda = None if state.cuda is None else [each.numpy().tobytes() for each in state.cuda]
    return {"cpu": state.cpu.numpy().tobytes(), "cuda": cuda, "numpy": state.numpy, "python": state.python}


def _set_generators(saved: Mapping[str, Any]) -> None:
    def tensor(data: bytes) -> torch.Tensor:
        return torch.from_numpy(np.frombuffer(data, dtype=np.uint8).copy())

    cuda = saved["cuda"] if torch.cuda.is_initialized() else None
    rng.restore(
        rng.RngState(
            cpu=tensor(saved["cpu"]),
            cuda=None if cuda is None else [tensor(each) for each in cuda],
            numpy=saved["numpy"],
            python=saved["python"],
        )
    )
