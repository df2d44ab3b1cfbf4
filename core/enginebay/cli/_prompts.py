"""Where the prompts of ``generate`` come from: an argument, a pipe, a file of lines or of JSON lines."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from enginebay.errors import ConfigError, did_you_mean
from enginebay.messages import SamplingParams

Messages = tuple[Mapping[str, str], ...]

_OPTIONS: Final[Mapping[str, Any]] = {"priority": int, "tenant": str, "timeout": float | None}
"""What a line may say of how its request is scheduled."""

_PARAMS: Final = frozenset(SamplingParams.__struct_fields__) - {"structured", "bad_words_token_ids"}
"""What a line may say of how its tokens are drawn; the shape of an answer is one for the whole file."""


@dataclass(frozen=True)
class Asked:
    """One prompt: plain text, or a conversation. ``params`` and ``options`` are what its line says beside it."""

    text: str | None = None
    messages: Messages | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)

    def conversation(self, system: str | None) -> Messages:
        """The prompt as a conversation; ``system`` goes first unless it has a system message of its own."""
        messages = self.messages or ({"role": "user", "content": self.text or ""},)
        if system is None or messages[0].get("role") == "system":
            return messages
        return ({"role": "system", "content": system}, *messages)


def one_prompt(prompt: str | None) -> Asked:
    """The prompt of the command line; ``-``, or none with something piped in, reads standard input."""
    text = prompt
    if prompt == "-" or (prompt is None and not sys.stdin.isatty()):
        text = _decoded(sys.stdin.buffer.read(), "standard input").removesuffix("\n")
    if not text:
        raise click.UsageError("there is no prompt: give one, pipe one in, or name a file with --file")
    return Asked(text=text)


def read_prompts(path: Path) -> list[Asked]:
    """The prompts of a file (``-``: standard input), one a line; JSON lines when the first one begins with ``{``.

    Then every line is one. Raises ``ConfigError`` with the number of a line that cannot be used, and for a JSON line
    with a prompt behind plain ones: nobody means that as text.
    """
    if str(path) == "-":
        text = _decoded(sys.stdin.buffer.read(), "standard input")
    else:
        try:
            text = _decoded(path.read_bytes(), str(path))
        except OSError as error:
            raise ConfigError(f"--file {path} cannot be read: {error.strerror}") from error
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not lines:
        raise ConfigError(f"--file {path} has no prompts: write one a line")
    if not lines[0][1].lstrip().startswith("{"):
        for number, line in lines:
            if _is_json_line(line):
                raise ConfigError(
                    f"{path}, line {number}: a JSON line among plain ones: the first line of a file says what all of "
                    'them are, so write each as {"prompt": "…"}'
                )
        return [Asked(text=line.removesuffix("\r")) for _, line in lines]
    return [_parse(line, f"{path}, line {number}") for number, line in lines]


def _parse(line: str, where: str) -> Asked:
    try:
        value: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: not JSON: {error}") from None
    more = dict(value) if isinstance(value, dict) else {}
    prompt, messages = more.pop("prompt", None), more.pop("messages", None)
    if (prompt is None) == (messages is None):
        raise ConfigError(f'{where}: write {{"prompt": "…"}} or {{"messages": [{{"role": "user", "content": "…"}}]}}')
    params, options = _beside(more, where)
    if prompt is not None:
        if not isinstance(prompt, str):
            raise ConfigError(f"{where}: prompt must be text, not {type(prompt).__name__}")
        return Asked(text=prompt, params=params, options=options)
    return Asked(messages=_checked(messages, where), params=params, options=options)


def _beside(more: Mapping[str, Any], where: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a line has beside its prompt, as sampling parameters and as options of the request."""
    known = sorted({*_OPTIONS, *_PARAMS})
    for name in more:
        if name not in known:
            raise ConfigError(
                f"{where}: unknown key {name!r}.{did_you_mean(name, known)} Known beside the prompt: {', '.join(known)}"
            )
    named = [name for name in more if name in _PARAMS]
    try:
        params = msgspec.convert({name: more[name] for name in named}, SamplingParams, str_keys=True)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: {error}") from None
    options = {}
    for name, kind in _OPTIONS.items():
        if name in more:
            try:
                options[name] = msgspec.convert(more[name], kind)
            except msgspec.ValidationError as error:
                raise ConfigError(f"{where}: {error} - at `$.{name}`") from None
    return {name: getattr(params, name) for name in named}, options


def _is_json_line(line: str) -> bool:
    if not line.lstrip().startswith("{"):
        return False
    try:
        value: Any = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and ("prompt" in value or "messages" in value)


def _checked(messages: object, where: str) -> Messages:
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        raise ConfigError(f"{where}: messages must be a list with at least one message")
    for message in messages:
        if not isinstance(message, Mapping) or not all(isinstance(message.get(k), str) for k in ("role", "content")):
            raise ConfigError(f"{where}: a message has a role and a content, both text")
    return tuple(messages)


def _decoded(data: bytes, where: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{where} is not UTF-8 text (byte {error.start})") from None
