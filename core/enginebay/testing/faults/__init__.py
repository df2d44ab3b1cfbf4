"""Faults on purpose: the extension ``faults``, which is off unless the config has ``[extensions.faults]``."""

from enginebay.testing.faults.agenda import draw
from enginebay.testing.faults.options import Fault, FaultKind, FaultOptions, RandomFaults

__all__ = ["Fault", "FaultKind", "FaultOptions", "RandomFaults", "draw"]
