"""The stages of a rank as a part of the whole model: names, state dicts, and the norm of all gradients."""

from __future__ import annotations

import math
from typing import AbstractSet, Any, Callable, Dict, List, Mapping, Optional, Tuple, Union

import torch
import torch.distributed as dist

from .local import AnyLinks
from .sharded import local

Names = Callable[[int, str], str]
Groups = Tuple[Any, ...]  # of processes
_WRAPPED = ("_orig_mod.", "_checkpoint_wrapped_module.")


class State:
    """Of the modules of a rank. Of its parameters `spread` each process of the group `experts` has a part, under
    a name of its own: the last but one of the name's parts is part0of2. `names(stage, name)` gives the name that a parameter or buffer of a stage has in
    the whole model; None takes `stage.{stage}.{name}`, and the names of `split` as they are. `holders` are the
    ranks of each stage."""

    def __init__(self, links: AnyLinks, modules: Dict[int, torch.nn.Module], holders: List[List[int]],
                 names: Optional[Names], spread: AbstractSet[torch.Tensor], experts: Any) -> None:
        self._spread, self._experts = spread, experts
        self._place, self._parts = (dist.get_rank(experts), dist.get_world_size(experts)) if spread else (0, 1)
        self._links, self._modules, self._holders, self._names = links, modules, holders, names
        self._of_model = all(getattr(module, "names_of_model", False) for module in modules.values())

    def name(self, stage: int, name: str) -> str:
        """The name in the whole model."""
        for wrapped in _WRAPPED:
            name = name.replace(wrapped, "")
        if self._names is not None:
            return self._names(stage, name)
        return name if self._of_model else f"stage.{stage}.{name}"

    @property
    def _part(self) -> str:
        return f"part{self._place}of{self._parts}"

    def module(self) -> torch.nn.Module:
        """All parameters and buffers under these names, as they are now."""
        whole = torch.nn.Module()
        for stage, module in self._modules.items():
            for path, part in module.named_modules(remove_duplicate=False):
                for name, tensor in (*part._parameters.items(), *part._buffers.items()):
                    of_model = self.name(stage, f"{path}.{name}".lstrip("."))
                    if tensor in self._spread:
                        parent, _, own = of_model.rpartition(".")
                        of_model = f"{parent}.{self._part}.{own}".lstrip(".")
                    at, leaf = _place(whole, of_model)
                    if getattr(at, leaf, tensor) is not tensor:
                        raise ValueError(f"{path}.{name} of stage {stage} has the name "
                                         f"{self.name(stage, name)!r}, and so has another tensor: let names= "
                                         "give each its own, the same for all holders of a stage")
                    if name in part._parameters:
                        at.register_parameter(leaf, part._parameters[name])
                    else:
                        at.register_buffer(leaf, tensor, name not in part._non_persistent_buffers_set)
        return whole

    def load(self, state: Mapping[str, torch.Tensor], strict: bool) -> None:
        whole = self.module()
        own, values = whole.state_dict(), {}
        same = self._same(whole)
        for name, tensor in own.items():
            found = next((n for n in (name, *same.get(name, ())) if n in state), None)
            entire = name.replace(f"{self._part}.", "")
            if found is not None:
                values[name] = _placed(state[found], tensor)
            elif entire != name and entire in state:
                values[name] = state[entire].chunk(self._parts)[self._place]
        missing = [name for name in own if name not in values]
        if missing and strict:
            raise ValueError(f"the state has no {missing[0]!r}, nor {len(missing) - 1} others that stages "
                             f"{list(self._modules)} have; it has names such as {next(iter(state), None)!r}: give "
                             "the state of the whole model, names= to PlanSchedule, or strict=False")
        whole.load_state_dict(values, strict=False)

    def _same(self, whole: torch.nn.Module) -> Dict[str, List[str]]:
        """For names of tied parameters all their names, one of which a state may leave out."""
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
        total = torch.zeros((), dtype=torch.float64, device=self._links.device)
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
        """Whether the gradient of a parameter counts here: of all ranks that have it, the first."""
        places = getattr(self._modules[stage], "tied_parameters", {}).get(name, ())
        ranks = [rank for s in (stage, *(s for s, _ in places)) for rank in self._holders[s]]
        first: bool = self._links.rank == min(ranks)
        return first

    def _spread_over(self, parameter: Any) -> Groups:
        """The groups of processes that have a part each of a parameter."""
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
    """A whole tensor in parts, where `like` has them."""
    if not hasattr(like, "placements") or hasattr(value, "placements"):
        return value
    from torch.distributed.tensor import distribute_tensor
    return distribute_tensor(value.to(like.device), like.device_mesh, like.placements)
