"""Where the prompts of ``generate`` come from: an argument, a pipe, a file of lines or of JSON lines."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from enginebay.errors import ConfigError

Messages = tuple[Mapping[str, str], ...]


@dataclass(frozen=True)
class Asked:
    """One prompt: plain text, or a conversation."""

    text: str | None = None
    messages: Messages | None = None

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

    Raises ``ConfigError`` with the number of a line that cannot be used.
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
        return [Asked(text=line.removesuffix("\r")) for _, line in lines]
    return [_parse(line, f"{path}, line {number}") for number, line in lines]


def _parse(line: str, where: str) -> Asked:
    try:
        value: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: not JSON: {error}") from None
    prompt = value.get("prompt") if isinstance(value, dict) else None
    messages = value.get("messages") if isinstance(value, dict) else None
    if not isinstance(value, dict) or (prompt is None) == (messages is None) or len(value) != 1:
        raise ConfigError(f'{where}: write {{"prompt": "…"}} or {{"messages": [{{"role": "user", "content": "…"}}]}}')
    if prompt is not None:
        if not isinstance(prompt, str):
            raise ConfigError(f"{where}: prompt must be text, not {type(prompt).__name__}")
        return Asked(text=prompt)
    return Asked(messages=_checked(messages, where))


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
