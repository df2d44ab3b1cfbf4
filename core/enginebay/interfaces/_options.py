"""The base of every plugin's options: a pydantic model, frozen, that refuses keys it does not know.

::

    class MyOptions(Options):
        window: Annotated[int, Field(ge=1, description="How many requests to look at.")] = 64

Descriptions and defaults feed ``enginebay describe`` and ``enginebay config schema``.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Options(BaseModel):
    """Options of one plugin, as they stand under ``[<kind>.options]`` in the config file."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=False)


class NoOptions(Options):
    """For a plugin that has none."""
