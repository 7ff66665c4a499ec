"""Stages sharded over replicas with `fully_shard`: gathered once a step, by the first forward, and
reduced and sharded again where the plan has their gradients complete."""

from __future__ import annotations

from typing import Any

import contraflow as cf


def is_sharded(module: Any) -> bool:
    """Whether a module itself is sharded, not a part of it."""
    return any(c.__name__ == "FSDPModule" and c.__module__.startswith("torch.") for c in type(module).__mro__)


def check_sharded(place: str, module: Any, plan: cf.Plan, *, data_parallel: Any, grad_reduce: Any) -> None:
    """Raises ValueError, with the remedy, unless the stage can be run."""
    if not hasattr(module, "finalize_backward"):
        raise ValueError(f"{place} is sharded with fully_shard, whose gradients can be reduced apart from a "
                         "backward since torch 2.15 only: give the bare module, and data_parallel=")
    if data_parallel is not None or grad_reduce is not None:
        name = "data_parallel" if data_parallel is not None else "grad_reduce"
        raise ValueError(f"{place} is sharded with fully_shard, which averages gradients over its mesh: leave "
                         f"out {name}=")
    for name, p in module.named_parameters():
        if not hasattr(p, "device_mesh"):
            raise ValueError(f"{place} is sharded with fully_shard, but not its parameter {name}, which "
                             "nobody would sum over replicas: leave out ignored_params")
        if plan.data_parallel > 1 and p.device_mesh.size() != plan.data_parallel:
            raise ValueError(f"{place} is sharded over {p.device_mesh.size()} processes, and the plan is for "
                             f"{plan.data_parallel} replicas")


def reshard(module: Any) -> None:
    """Leaves to this process no more than its share."""
    for part in module.modules():
        if is_sharded(part):
            part.reshard()


def begin(module: Any) -> None:
    """Before a step: backwards add up what the last of them reduces, and no one shards in between."""
    reshard(module)
    module.set_reshard_after_forward(False)
    module.set_reshard_after_backward(False)
    module.set_requires_gradient_sync(False)
    module.set_manual_backward_finalization(True)


def reduce(module: Any) -> None:
    """After the last weight gradient: `.grad` is the average over the mesh, sharded."""
    module.set_requires_gradient_sync(True)
    module.set_reshard_after_backward(True)
    module.finalize_backward()
    module.set_manual_backward_finalization(False)


def local(tensor: Any) -> Any:
    """The part of a tensor that this process has."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor
