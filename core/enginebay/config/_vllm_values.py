"""What people write behind vLLM's flags, as our values.

``ValueError`` says what it must be, ``NotHere`` why there is none.
"""

from __future__ import annotations

import json
import os
import re
from typing import Final

_DECIMAL: Final = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY: Final = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_DTYPES: Final = {
    "auto": "auto",
    "bfloat16": "bfloat16",
    "float": "float32",
    "float16": "float16",
    "float32": "float32",
    "half": "float16",
}


class NotHere(Exception):
    """The value means something that enginebay does not have; the message is the reason."""


def path(text: str) -> str:
    """What is there by its whole path, for the config file may lie elsewhere; other names as they are."""
    found = os.path.abspath(text) if os.path.exists(text) else text
    if not is_text(found):
        raise ValueError("must lie in a folder whose name is UTF-8 text")
    return found


def dtype(text: str) -> str:
    """ "half" and "float" have longer names here."""
    if text not in _DTYPES:
        raise ValueError(f"must be one of {', '.join(sorted(_DTYPES))}")
    return _DTYPES[text]


def cache_dtype(text: str) -> str:
    """The precision of keys and values; there are none of 8 bits."""
    if text in _DTYPES:
        return _DTYPES[text]
    raise NotHere("keys and values are kept in float32, bfloat16 or float16")


def whole(text: str) -> int:
    """A whole number."""
    if not re.fullmatch(r"[+-]?[0-9]{1,40}", text):
        raise ValueError("must be a whole number")
    return int(text)


def seed(text: str) -> int:
    """A whole number; vLLM also takes None."""
    if text.lower() == "none":
        raise NotHere("unset, the seed is 0; requests without a seed of their own are drawn at random all the same")
    return whole(text)


def number(text: str) -> float:
    """A number."""
    try:
        return float(text)
    except ValueError:
        raise ValueError("must be a number") from None


def size(text: str) -> int:
    """A whole number, or one with k, m, g, t (thousands) or K, M, G, T (1024s): "4k", "2.5m", "1G"."""
    match = re.fullmatch(r"([0-9]{1,40})(?:\.([0-9]{1,9}))?([kmgtKMGT])", text)
    if match is None:
        return whole(text)
    digits, fraction, unit = match.groups()
    if unit in _BINARY:
        if fraction:
            raise ValueError(f"must be a whole number of {unit}")
        return int(digits) * _BINARY[unit]
    value, rest = divmod(int(digits + (fraction or "")) * _DECIMAL[unit], int("1" + "0" * len(fraction or "")))
    if rest:
        raise ValueError("must come to a whole number")
    return value


def model_len(text: str) -> int:
    """A size; "auto" and -1 stand for what the cache holds."""
    if text in ("auto", "-1"):
        raise NotHere("unset, it is the model's own, and what the cache cannot hold is taken off")
    return size(text)


def executor(text: str) -> str:
    """The name of one; a dotted class path is none."""
    if "." in text:
        raise NotHere("an executor is an installed plugin that is named: enginebay plugins")
    return text


def hash_name(text: str) -> str:
    """Blocks are named by SHA-256, whatever was hashed there."""
    if text == "sha256":
        return text
    raise NotHere("blocks are named by sha256, the one way that [cache] hash has")


def switch(text: str) -> bool:
    """ "true" or "false", in any case."""
    if text.lower() not in ("true", "false"):
        raise ValueError("must be true or false")
    return text.lower() == "true"


def overlap(text: str) -> str | bool:
    """On is "auto": where executor and scheduler can."""
    return "auto" if switch(text) else False


def toml(value: str | float | bool) -> str:
    """The value as TOML."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str):
        return repr(value)
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def is_text(text: str) -> bool:
    """Whether it can be written: an argument may hold bytes that are no UTF-8."""
    return not any("\ud800" <= c <= "\udfff" for c in text)
