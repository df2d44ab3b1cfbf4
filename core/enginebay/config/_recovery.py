"""``[recovery]``: how often workers that ended by themselves are started again, and how long that may wait."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from enginebay.config._section import Positive, Seconds, Section

__all__ = ["RecoveryConfig"]


class RecoveryConfig(Section):
    """``[recovery]``: the budgets of restarts. Past them the engine ends, and says what it has seen."""

    max_restarts: Annotated[
        int, Field(ge=0, strict=True, description="Restarts of the workers in one slot within a window; 0: none.")
    ] = 5
    max_restarts_in_all: Annotated[
        int, Field(ge=0, strict=True, description="Restarts of all the engine's groups within a window.")
    ] = 20
    window: Annotated[Seconds, Field(description="The window, in seconds.")] = 600.0
    good_run: Annotated[
        Seconds, Field(description="Seconds of readiness after which earlier restarts count no more.")
    ] = 600.0
    failed_starts: Annotated[
        Positive,
        Field(description="So many failures in a row at the same place of a start, in the same way, are enough."),
    ] = 2
    longest_wait: Annotated[
        float,
        Field(
            ge=0, allow_inf_nan=False, description="Seconds before a restart: 0, 1, 2, 4 … and never more than this."
        ),
    ] = 60.0
    reclaim: Annotated[
        Seconds,
        Field(description="How long what a dead worker had taken may be held, in seconds; then its slot is given up."),
    ] = 30.0
