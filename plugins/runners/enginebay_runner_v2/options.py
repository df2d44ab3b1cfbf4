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
    weights: Annotated[
        Literal["model", "int8"],
        Field(
            description=(
                "How weights of products are kept. model: in the model's dtype; int8: in whole numbers from -127 to "
                "127, one scale for each output, half as large as bfloat16 and read twice as fast; tokens may differ, "
                "and the start waits for the kernels unless compile is off, since steps without them are slow."
            )
        ),
    ] = "model"
    kv_cache: Annotated[
        Literal["model", "int8"],
        Field(
            description=(
                "How keys and values are kept. model: in the model's dtype; int8: in whole numbers from -127 to 127, "
                "one scale for a token's key of a head, and one for its value: about half as large as bfloat16; "
                "tokens may differ."
            )
        ),
    ] = "model"
    verify_graph: Annotated[
        bool,
        Field(
            description="Compare results before and after each graph pass at the start, and refuse one that differs."
        ),
    ] = False

    @property
    def building(self) -> Literal["off", "background", "wait"]:
        """``compile``, as it is in force with these weights."""
        return "wait" if self.weights == "int8" and self.compile == "background" else self.compile
