"""The stages of a rank as a part of the whole model: names, state dicts, and the norm of all gradients."""

from __future__ import annotations

import math
from typing import AbstractSet, Any, Callable, Dict, List, Mapping, Optional, Set, Tuple, Union

import torch
import torch.distributed as dist

from .local import AnyLinks
from .sharded import local

Names = Callable[[int, str], str]
Groups = Tuple[Any, ...]  # of processes
_WRAPPED = ("_orig_mod.", "_checkpoint_wrapped_module.")


class State:
    """The modules of a rank. `names(stage, name)` gives the name that a parameter or buffer of a stage has in
    the whole model; None takes `stage.{stage}.{name}`, and the names of `split` as they are. `holders` are the
    ranks of each stage. Of the parameters `spread` each process of the group `experts` has a part, along their
    first dimension."""

    def __init__(self, links: AnyLinks, device: torch.device, modules: Dict[int, torch.nn.Module],
                 holders: List[List[int]], names: Optional[Names], spread: AbstractSet[torch.Tensor],
                 experts: Any) -> None:
        self._device, self._spread, self._experts = device, spread, experts
        self._links, self._modules, self._holders, self._names = links, modules, holders, names
        self._of_model = all(getattr(module, "names_of_model", False) for module in modules.values())

    def name(self, stage: int, name: str) -> str:
        """Returns the name in the whole model."""
        for wrapped in _WRAPPED:
            name = name.replace(wrapped, "")
        if self._names is not None:
            return self._names(stage, name)
        return name if self._of_model else f"stage.{stage}.{name}"

    def module(self) -> torch.nn.Module:
        """Returns all parameters and buffers that state dicts have under these names, as they are now."""
        whole = torch.nn.Module()
        for stage, module in self._modules.items():
            for path, part in module.named_modules(remove_duplicate=False):
                kept = (item for item in part._buffers.items() if item[0] not in part._non_persistent_buffers_set)
                for name, tensor in (*part._parameters.items(), *kept):
                    of_model = self.name(stage, f"{path}.{name}".lstrip("."))
                    at, leaf = _place(whole, of_model)
                    if getattr(at, leaf, tensor) is not tensor:
                        raise ValueError(f"{path}.{name} of stage {stage} has the name {of_model!r}, and so has "
                                         "another tensor: let names= give each its own, the same for all holders "
                                         "of a stage")
                    if name in part._parameters:
                        at.register_parameter(leaf, part._parameters[name])
                    else:
                        at.register_buffer(leaf, tensor)
        return whole

    def state(self) -> Dict[str, Any]:
        whole = self.module()
        parts = self._parts(whole)
        return {name: self._as_part(value) if name in parts else value for name, value in whole.state_dict().items()}

    def load(self, state: Mapping[str, Any], strict: bool) -> None:
        if not isinstance(state, Mapping):
            raise TypeError(f"a state must be a dict from names to tensors, is a {type(state).__name__}")
        whole = self.module()
        own, values, parts = whole.state_dict(), {}, self._parts(whole)
        same = self._same(whole)
        for name, tensor in own.items():
            found = next((n for n in (name, *same.get(name, ())) if n in state), None)
            if found is not None:
                value = state[found]
                values[name] = self._own_part(value, tensor) if name in parts else _placed(value, tensor)
        missing = [name for name in own if name not in values]
        if missing and strict:
            raise ValueError(f"the state has no {missing[0]!r}, nor {len(missing) - 1} others that stages "
                             f"{list(self._modules)} have; it has names such as {next(iter(state), None)!r}: give "
                             "the state of the whole model, names= to PlanSchedule, or strict=False")
        whole.load_state_dict(values, strict=False)

    def optimizer_state(self, optimizer: torch.optim.Optimizer) -> Dict[str, Any]:
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict
        whole, options = self.module(), StateDictOptions(flatten_optimizer_state_dict=True)
        state: Dict[str, Any] = get_optimizer_state_dict(whole, optimizer, options=options)
        for key, others in self._tied_keys(whole, state):
            for other in others:  # another plan may have another of these names on its rank
                state.setdefault(other, state[key])
        return self._of_parts(whole, state, self._as_part)

    def load_optimizer_state(self, optimizer: torch.optim.Optimizer, state: Dict[str, Any]) -> None:
        from torch.distributed.checkpoint.state_dict import StateDictOptions, set_optimizer_state_dict
        whole, options = self.module(), StateDictOptions(flatten_optimizer_state_dict=True)
        taken, held = dict(state), {name for name, _ in whole.named_parameters()}
        for key, _ in self._tied_keys(whole, state):
            if key.split(".", 1)[1].rsplit(".", 1)[0] not in held:
                del taken[key]
        set_optimizer_state_dict(whole, optimizer, self._of_parts(whole, taken, local), options=options)

    def _tied_keys(self, whole: torch.nn.Module, state: Dict[str, Any]) -> List[Tuple[str, List[str]]]:
        """Returns the keys of an optimizer's state that are of tied parameters, with those of their other names."""
        same, found = self._same(whole), []
        for key in state:
            kind, _, rest = key.partition(".")
            name, _, leaf = rest.rpartition(".")
            names = same.get(name) or next((n for n in same.values() if name in n), ())
            if len(names) > 1:
                found.append((key, [f"{kind}.{other}.{leaf}" for other in names if other != name]))
        return found

    def _parts(self, whole: torch.nn.Module) -> Set[str]:
        """Returns the names of parameters of which other processes have other parts."""
        return {name for name, parameter in whole.named_parameters() if parameter in self._spread}

    def _of_parts(self, whole: torch.nn.Module, state: Dict[str, Any], change: Callable[[Any], Any]) -> Dict[str, Any]:
        """Changes what the state of an optimizer has for such parameters."""
        parts = tuple(f"state.{name}." for name in self._parts(whole))
        return {key: change(value) if key.startswith(parts) and torch.is_tensor(value) and value.dim() > 0 else value
                for key, value in state.items()}

    def _as_part(self, value: torch.Tensor) -> Any:
        """Returns the tensor of all processes of the expert group, of which `value` is here."""
        from torch.distributed.device_mesh import DeviceMesh
        from torch.distributed.tensor import DTensor, Shard
        return DTensor.from_local(value, DeviceMesh.from_group(self._experts, value.device.type), [Shard(0)])

    def _own_part(self, value: Any, like: torch.Tensor) -> Any:
        if hasattr(value, "placements") or value.shape == like.shape:
            return local(value)
        rank, size = dist.get_rank(self._experts), dist.get_world_size(self._experts)
        if value.shape != (size * like.shape[0], *like.shape[1:]):
            raise ValueError(f"a parameter of shape {list(like.shape)} is one of {size} parts along dimension "
                             f"0, and the state has shape {list(value.shape)}")
        return value[rank * like.shape[0]:(rank + 1) * like.shape[0]]

    def _same(self, whole: torch.nn.Module) -> Dict[str, List[str]]:
        """Returns for each name of a parameter all its names, of which a state needs one."""
        shared: Dict[int, List[str]] = {}
        for path, part in whole.named_modules():
            for leaf, parameter in part._parameters.items():
                shared.setdefault(id(parameter), []).append(f"{path}.{leaf}".lstrip("."))
        same = {name: names for names in shared.values() for name in names}
        for stage, module in self._modules.items():
            for name, places in getattr(module, "tied_parameters", {}).items():
                name = self.name(stage, name)
                same[name] = same[name] + [self.name(*place) for place in places]
        return same

    # The norm of the gradients

    def clip_grad_norm(self, max_norm: Union[float, torch.Tensor], norm_type: float) -> torch.Tensor:
        if not norm_type > 0 or not max_norm >= 0:
            raise ValueError(f"max_norm must be at least 0 and norm_type above 0, are {max_norm} and {norm_type}")
        grads: List[torch.Tensor] = []
        counted: Dict[Groups, List[torch.Tensor]] = {}  # by the groups over which their parts are spread
        seen = set()
        for stage, module in self._modules.items():
            for name, parameter in module.named_parameters():
                if id(parameter) in seen:
                    continue
                seen.add(id(parameter))
                own = [local(parameter.grad)] if parameter.grad is not None else []
                grads += own
                if self._counted(stage, name):
                    counted.setdefault(self._spread_over(parameter), []).extend(own)
        most = math.isinf(norm_type)
        combine, op = (torch.maximum, dist.ReduceOp.MAX) if most else (torch.add, dist.ReduceOp.SUM)
        total = torch.zeros((), dtype=torch.float64, device=self._device)
        for groups, parts in counted.items():
            norms = torch.stack([torch.zeros_like(total), *(norm.to(total) for norm in _norms(parts, norm_type))])
            part = norms.max() if most else norms.pow(norm_type).sum()
            for group in groups:
                dist.all_reduce(part, op, group=group)
            total = combine(total, part)
        self._links.combine(total, op)
        norm = (total if most else total.pow(1 / norm_type)).to(torch.get_default_dtype())
        scale = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
        for grad in grads:
            grad.mul_(scale.to(grad.device))
        return norm

    def _counted(self, stage: int, name: str) -> bool:
        """Returns whether the gradient of a parameter counts here, on the first of all ranks that have it."""
        places = getattr(self._modules[stage], "tied_parameters", {}).get(name, ())
        ranks = [rank for s in (stage, *(s for s, _ in places)) for rank in self._holders[s]]
        first: bool = self._links.rank == min(ranks)
        return first

    def _spread_over(self, parameter: Any) -> Groups:
        """Returns the groups of processes that have a part each of a parameter."""
        placements = getattr(parameter, "placements", ())
        over_mesh = [parameter.device_mesh.get_group(dim) for dim, placement in enumerate(placements)
                     if placement.is_shard()]
        return (*over_mesh, self._experts) if parameter in self._spread else tuple(over_mesh)


def _norms(grads: List[torch.Tensor], norm_type: float) -> List[torch.Tensor]:
    wide = [g for g in grads if g.dtype not in (torch.float16, torch.bfloat16)]
    return [*(torch._foreach_norm(wide, norm_type) if wide else ()),
            *(torch.linalg.vector_norm(g, norm_type, dtype=torch.float32) for g in grads
              if g.dtype in (torch.float16, torch.bfloat16))]


def _place(whole: torch.nn.Module, name: str) -> Tuple[torch.nn.Module, str]:
    *path, leaf = name.split(".")
    for part in path:
        if part not in whole._modules:
            whole.add_module(part, torch.nn.Module())
        whole = whole.get_submodule(part)
    return whole, leaf


def _placed(value: Any, like: Any) -> Any:
    """Returns a whole tensor in parts, where `like` has them."""
    if not hasattr(like, "placements") or hasattr(value, "placements"):
        return value
    from torch.distributed.tensor import distribute_tensor
    return distribute_tensor(value.to(like.device), like.device_mesh, like.placements)
