"""Runs plans over torch.distributed, with the user's own modules as stages."""

from .all_to_all import AllToAll, TokenDispatcher
from .backward import WeightGradStore
from .layers import DenseLayer, MoELayer
from .links import Links
from .local import LocalLinks, run_local
from .losses import add_loss
from .moe_blocks import from_moe_block
from .schedule import PlanSchedule
from .split import split
from .stage import BackwardChunk, ForwardChunk, Overlap
from .torch_schedule import as_torch_schedule
from .watch import StepError

__all__ = ["AllToAll", "BackwardChunk", "DenseLayer", "ForwardChunk", "Links", "LocalLinks", "MoELayer", "Overlap",
           "PlanSchedule", "StepError", "TokenDispatcher", "WeightGradStore", "add_loss", "as_torch_schedule",
           "from_moe_block", "run_local", "split"]
