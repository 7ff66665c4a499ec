"""Runs plans over torch.distributed, with the user's own modules as stages."""

from .backward import WeightGradStore
from .links import Links
from .local import LocalLinks, run_local
from .schedule import PlanSchedule
from .stage import BackwardChunk, ForwardChunk, Overlap
from .torch_schedule import as_torch_schedule
from .watch import StepError

__all__ = ["BackwardChunk", "ForwardChunk", "Links", "LocalLinks", "Overlap", "PlanSchedule",
           "StepError", "WeightGradStore", "as_torch_schedule", "run_local"]
