"""Contraflow: a schedule compiler for pipeline-parallel training.

    import contraflow as cf
    plan = cf.compile("dualpipe", ranks=8, microbatches=20, costs="deepseek-v3-h800")
    plan.verify()
    plan.makespan, plan.bound, plan.programs[0][0]

`contraflow.torch` runs plans on torch.distributed.
"""

import sys as _sys

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
]

for _name in __all__:
    _object = globals()[_name]
    if isinstance(_object, type):
        _object.__module__ = "contraflow"
        # pprint looks it up in a dict, and a method of C++ cannot be a key.
        _object.__repr__ = (lambda method: lambda self: method(self))(_object.__repr__)


def __getattr__(name):
    if name == "torch":  # takes seconds to import, and not everyone has it
        import importlib

        return importlib.import_module("contraflow.torch")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
