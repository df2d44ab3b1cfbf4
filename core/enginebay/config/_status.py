"""``[status]``: to which sinks the engine writes how its workers stand, and a table of options for each of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from enginebay.config._section import Section
from enginebay.errors import did_you_mean

__all__ = ["StatusConfig"]


def _table(value: object) -> object:
    if not isinstance(value, Mapping):  # no table is a sink's: it is a key that there is not
        raise PydanticCustomError("extra_forbidden", "is not known")
    return value


class StatusConfig(Section):
    """``[status]``: where statuses go. ``[status.NAME]`` has the options of sink NAME."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Annotated[dict[str, Any], BeforeValidator(_table)]] = Field(init=False)

    sinks: Annotated[
        tuple[str, ...], Field(description="Names of installed status sinks; each has its options in [status.NAME].")
    ] = ("sqlite",)

    @property
    def options(self) -> dict[str, dict[str, Any]]:
        """The tables, by the name of the sink."""
        return dict(self.__pydantic_extra__ or {})

    @model_validator(mode="after")
    def _options_of_sinks(self) -> Self:
        twice = [name for name in self.sinks if self.sinks.count(name) > 1]
        if twice:
            raise ValueError(f"sinks names '{twice[0]}' twice: once is enough")
        stray = [name for name in self.options if name not in self.sinks]
        if stray and self.sinks:  # without any, all is switched off, and what is configured may stand
            raise ValueError(
                f"there is a table for '{stray[0]}', which sinks does not name.{did_you_mean(stray[0], self.sinks)} "
                f"Named: {', '.join(self.sinks)}"
            )
        return self
