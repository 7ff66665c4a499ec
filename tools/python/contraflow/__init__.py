"""Contraflow: a schedule compiler for pipeline-parallel training.

    import contraflow as cf
    plan = cf.compile("dualpipe", ranks=8, microbatches=20, costs="deepseek-v3-h800")
    plan.verify()
    plan.makespan, plan.bound, plan.programs[0][0]

`contraflow.torch` runs plans on torch.distributed.
"""

import typing as _typing

try:
    from contraflow._core import (
        Comparison,
        Costs,
        Error,
        Finding,
        Instruction,
        Plan,
        Plans,
        Route,
        Simulation,
        Unsound,
        __version__,
        diff,
    )
except ModuleNotFoundError as error:
    if error.name != "contraflow._core":
        raise
    import os as _os
    from importlib.machinery import EXTENSION_SUFFIXES as _SUFFIXES

    _folder = _os.path.dirname(_os.path.abspath(__file__))
    _built = [n for n in sorted(_os.listdir(_folder)) if n.startswith("_core.") and n[-4:] != ".pyi"]
    if _built:
        raise ImportError(
            "contraflow was built for another Python: it has %s, and this one takes _core%s; build "
            "it with this one (pip install .)" % (", ".join(_built), _SUFFIXES[0])
        ) from None
    raise ImportError(
        "contraflow is not built in %s: cmake --build --preset release --target contraflow_python "
        "makes it in build/release/tools/python; or install it (pip install .)" % _folder
    ) from None
from contraflow.compiling import compare, compile, plan

__all__ = [
    "Comparison",
    "Costs",
    "Error",
    "Finding",
    "Instruction",
    "Plan",
    "Plans",
    "Route",
    "Simulation",
    "Unsound",
    "compare",
    "compile",
    "diff",
    "plan",
]


def _show_as_ours(cls: _typing.Any) -> None:
    cls.__module__ = "contraflow"
    # pprint looks it up in a dict, and a method of C++ cannot be a key.
    method = cls.__repr__
    cls.__repr__ = lambda self: method(self)


for _name in __all__:
    if isinstance(globals()[_name], type):
        _show_as_ours(globals()[_name])


if _typing.TYPE_CHECKING:  # to which a __getattr__ has every name
    from contraflow import torch as torch
else:

    def __getattr__(name):
        if name == "torch":  # takes seconds to import, and not everyone has it
            import importlib

            return importlib.import_module("contraflow.torch")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
