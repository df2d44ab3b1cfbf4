"""The mechanics that every policy gets: budgets, queues, KV blocks, chunks, preemption, tokens in flight.

A policy says who goes first; everything that can go wrong is decided here, once, for all policies. The parts: the
record of a request and what policies see of it (``_record``), the one door to a policy's code (``_door``), the
waiting line (``_line``, with ``_groups`` and ``_overtaking``) and what holds requests in it (``_gate``), the bounds of
a step (``_bounds``), the step being drawn up (``_draft``), who gives way when blocks or places run out (``_eviction``,
with ``_victims``), who starts (``_admission``), what is guessed ahead (``_proposals``), the order of the passes
(``_passes``), and the scheduler that joins them (``_mechanics``).
"""

from enginebay.scheduling._build import make_scheduler
from enginebay.scheduling._fits import check_fits
from enginebay.scheduling._mechanics import MechanicsScheduler
from enginebay.scheduling._tier import is_policy

__all__ = ["MechanicsScheduler", "check_fits", "is_policy", "make_scheduler"]
