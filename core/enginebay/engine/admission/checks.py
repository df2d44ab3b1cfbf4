"""The checks that every field of a request is made of; each refusal names the field, and says what was brought."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from enginebay.errors import InvalidRequest

__all__ = [
    "at_least",
    "check_sequence",
    "check_tokens",
    "check_unicode",
    "is_finite",
    "is_int",
    "is_text",
    "kind_of",
    "refuse",
    "shown",
]

_INT_BITS: Final = 63
"""Integers cross to the workers, and into traces, as signed numbers of 64 bits."""


def refuse(param: str, message: str) -> InvalidRequest:
    """The error of one field."""
    return InvalidRequest(message, param=param)


def check_sequence(name: str, value: object) -> None:
    """Refuse what is no tuple; a list is one by now."""
    if type(value) is not tuple:
        raise refuse(name, f"{name} must be a tuple, not {type(value).__name__}")


def check_tokens(param: str, noun: str, token_ids: Sequence[object], vocab_size: int) -> None:
    """Refuse what is no token of the model, by its place: "prompt token 3", where ``noun`` is "prompt token"."""
    for position, token_id in enumerate(token_ids):
        if type(token_id) is not int:
            raise refuse(
                param, f"{noun} {position} is {shown(token_id)}: token ids are integers from 0 to {vocab_size - 1}"
            )
        if not 0 <= token_id < vocab_size:
            raise refuse(
                param,
                f"{noun} {position} is {shown(token_id)}, outside the model's vocabulary (0 to {vocab_size - 1})",
            )


def check_unicode(name: str, value: str) -> None:
    """Refuse a lone surrogate."""
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise refuse(
            name, f"{name} has a lone surrogate at character {error.start} ({shown(value)}): it is no Unicode text"
        ) from None


def at_least(name: str, value: object, least: int, most: int | None = None) -> None:
    """Refuse what is no integer from ``least`` to ``most``, or, without one, to the largest that crosses."""
    if most is not None:
        if type(value) is not int or not least <= value <= most:
            raise refuse(name, f"{name} must be an integer from {least} to {most}, not {shown(value)}")
        return
    if type(value) is not int or value < least:
        raise refuse(name, f"{name} must be an integer, {least} or more, not {shown(value)}")
    if value >= 2**_INT_BITS:
        raise refuse(name, f"{name} must be an integer from {least} to 2**{_INT_BITS} - 1, not {shown(value)}")


def is_int(value: object) -> bool:
    """Whether it is an integer, and no bool."""
    return type(value) is int


def is_text(value: object) -> bool:
    """Whether it is a string that is not empty."""
    return type(value) is str and value != ""


def is_finite(value: object) -> bool:
    """Whether it is a number: an integer is a float by now, unless no float can hold it."""
    return type(value) is float and math.isfinite(value)


def kind_of(value: object) -> str:
    """What a value is, in a message; a class that was brought instead of an instance is told as one."""
    return f"the class {value.__name__} itself" if isinstance(value, type) else type(value).__name__


def shown(value: object) -> str:
    """The value in a message: cut, and also when it cannot say itself (an integer of 5,000 digits cannot)."""
    try:
        return f"{value!r:.80}"
    except Exception as error:
        return f"a value of type {type(value).__name__} whose repr fails: {error}"[:160]
