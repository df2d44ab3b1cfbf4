"""The options of ``generate`` that give an answer its shape."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, TypeVar

import click

from enginebay.cli._sampling import options_under
from enginebay.messages import StructuredOutput

__all__ = ["structured_options", "structured_output"]

_MOST_BYTES: Final = 1 << 20
"""Of a file that is read; what an engine takes is less, and its own to say."""

F = TypeVar("F", bound=Any)


def structured_options(function: F) -> F:
    """Add the options of ``structured_output``."""
    return options_under(
        function,
        "What shape an answer has",
        json_schema={"metavar": "FILE|TEXT", "help": "A JSON schema that the answer, one JSON value, satisfies."},
        regex={"metavar": "REGEX", "help": "A regular expression that the whole answer matches."},
        grammar={
            "type": click.Path(path_type=Path),
            "metavar": "FILE",
            "help": "A grammar of the answer: Lark or GBNF, see docs/structured-output.md.",
        },
        choice={"multiple": True, "metavar": "TEXT", "help": "A text that the answer may be. Repeatable."},
    )


def structured_output(
    json_schema: str | None, regex: str | None, grammar: Path | None, choice: tuple[str, ...]
) -> StructuredOutput | None:
    """The shape that the options give, None without one. The engine looks whether it is a good one."""
    given = {"--json-schema": json_schema, "--regex": regex, "--grammar": grammar, "--choice": choice or None}
    named = [flag for flag, value in given.items() if value is not None]
    if len(named) > 1:
        raise click.UsageError(f"an answer has one shape: give {' or '.join(named)}, not both")
    if not named:
        return None
    return StructuredOutput(
        json_schema=None if json_schema is None else _schema(json_schema),
        regex=regex,
        ebnf=None if grammar is None else _read(grammar, "--grammar"),
        choice=choice,
    )


def _schema(text: str) -> str:
    """JSON as it stands, or the file of that name."""
    if text.lstrip()[:1] == "{" or text.strip() in ("true", "false"):
        return text
    return _read(Path(text), "--json-schema", "; a schema itself begins with {")


def _read(path: Path, flag: str, hint: str = "") -> str:
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise click.BadParameter(f"{path} cannot be read: {error.strerror}{hint}", param_hint=flag) from None
    if len(content) > _MOST_BYTES:
        raise click.BadParameter(f"{path} has more than {_MOST_BYTES} bytes", param_hint=flag)
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise click.BadParameter(f"{path} is no UTF-8 at byte {error.start}", param_hint=flag) from None
