"""Contraflow: a schedule compiler for pipeline-parallel training.

    import contraflow as cf
    plan = cf.compile("dualpipe", ranks=8, microbatches=20, costs="deepseek-v3-h800")
    plan.verify()
    plan.makespan, plan.bound, plan.programs[0][0]

`contraflow.torch` runs plans on torch.distributed.
"""

import sys as _sys
from typing import Any as _Any

try:
    from contraflow._core import (
        Comparison,
        Costs,
        Error,
        Finding,
        Instruction,
        Plan,
        Route,
        Simulation,
        Unsound,
        diff,
    )
except ModuleNotFoundError as error:
    if error.name != "contraflow._core":
        raise
    raise ImportError(
        "contraflow was built for another Python than this one, %d.%d; build it with this one "
        "(pip install)" % _sys.version_info[:2]
    ) from None
from contraflow.compiling import compare, compile

__all__ = [
    "Comparison",
    "Costs",
    "Error",
    "Finding",
    "Instruction",
    "Plan",
    "Route",
    "Simulation",
    "Unsound",
    "compare",
    "compile",
    "diff",
]


def _show_as_ours(cls: _Any) -> None:
    cls.__module__ = "contraflow"
    # pprint looks it up in a dict, and a method of C++ cannot be a key.
    method = cls.__repr__
    cls.__repr__ = lambda self: method(self)


for _name in __all__:
    if isinstance(globals()[_name], type):
        _show_as_ours(globals()[_name])


def __getattr__(name):
    if name == "torch":  # takes seconds to import, and not everyone has it
        import importlib

        return importlib.import_module("contraflow.torch")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
