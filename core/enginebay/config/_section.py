"""What the sections of ``engine.toml`` are made of: their base, and the types of values that several have."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["Dtype", "Positive", "Seconds", "Section", "Switch"]

Positive = Annotated[int, Field(ge=1, strict=True)]  # strict: true is no 1
Switch = Annotated[bool, Field(strict=True)]  # strict: 1 and "on" are no true
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Dtype = Literal["auto", "float32", "bfloat16", "float16"]


class Section(BaseModel):
    """Base of every section: frozen, and a key it does not know is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)
