"""The options of runner ``v2``."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from enginebay.interfaces import Options

__all__ = ["RunnerV2Options"]


class RunnerV2Options(Options):
    """What stands in ``[runner.options]``."""

    compile: Annotated[
        Literal["off", "background", "wait"],
        Field(
            description=(
                "Native kernels, built once per machine and kept. wait: the start waits until they are built; "
                "background: the engine starts with the graph's Python code and changes over when they are there; "
                "off: the Python code alone."
            )
        ),
    ] = "background"
    verify_graph: Annotated[
        bool,
        Field(
            description="Compare results before and after each graph pass at the start, and refuse one that differs."
        ),
    ] = False
