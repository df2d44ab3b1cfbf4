"""A model's chat template, rendered in jinja2's sandbox with the functions that published templates expect."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from enginebay.errors import InvalidRequest, ModelError
from enginebay.models._files import one_line, read_json

ROLES = ("assistant", "developer", "system", "tool", "user")
_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


class ChatTemplate:
    """Turns messages into the text that a chat model was trained on. Make it with ``from_folder``."""

    def __init__(
        self,
        source: str,
        where: str,
        tokens: Mapping[str, str] | None = None,
        *,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        """``source`` is the template, ``where`` its name in messages, ``tokens`` bos_token and so on by name.

        ``now`` is the clock of templates that write today's date. Raises ``ModelError`` when the template is broken.
        """
        self.where, self._tokens = where, dict(tokens or {})
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation]
        )
        environment.filters["tojson"] = _to_json
        environment.globals |= {"raise_exception": _raise, "strftime_now": lambda form: now().strftime(form)}
        try:
            tree = environment.parse(source)
            words = [node.value for node in tree.find_all(jinja2.nodes.Const) if isinstance(node.value, str)]
            texts = [node.data for node in tree.find_all(jinja2.nodes.TemplateData)]
            self._template = environment.from_string(source)
        except Exception as error:  # its compiler fails in any way: nested too deeply, a break outside a loop, ...
            raise ModelError(f"the chat template in {where} is broken: {_why(error)}") from error
        self.words = tuple(dict.fromkeys(words))  # the strings it writes, compares with and looks for
        self.literals = "\0".join([*self.words, *texts, *self._tokens.values()])

    @classmethod
    def from_folder(cls, folder: Path, *, now: Callable[[], datetime] = datetime.now) -> ChatTemplate:
        """The folder's template. Raises ``ModelError`` when there is none, or it cannot be read, or is broken."""
        found = cls.find(folder, now=now)
        if found is None:
            raise ModelError(f"the model in {folder} has no chat template: give it plain prompts, or use a chat model")
        return found

    @classmethod
    def find(cls, folder: Path, *, now: Callable[[], datetime] = datetime.now) -> ChatTemplate | None:
        """Read chat_template.jinja, else the template in tokenizer_config.json; None when there is neither.

        Raises ``ModelError`` for one that cannot be read, or is broken.
        """
        config_path, own = folder / "tokenizer_config.json", folder / "chat_template.jinja"
        config = read_json(config_path) if config_path.is_file() else {}
        try:
            source = own.read_text(encoding="utf-8") if own.is_file() else _named(config.get("chat_template"))
        except (OSError, ValueError) as error:
            raise ModelError(f"cannot read {own}: {error}") from error
        if source is None:
            return None
        tokens = {name: text for name in _TOKENS if (text := _content(config.get(name))) is not None}
        return cls(source, str(own if own.is_file() else config_path), tokens, now=now)

    def writes(self, token: str) -> bool:
        """Whether the template writes this token, as it stands or around a role (``'<|' + role + '|>'``).

        Mere words and spaces are not told from text, so they do not count.
        """
        if len(token) < 2 or not re.search(r"[^\w\s]", token):
            return False
        forms = [form for role in ROLES for form in (role, role.capitalize(), role.upper()) if form in token]
        return token in self.literals or any(
            all(part and part in self.literals for part in token.split(form, 1)) for form in forms
        )

    def render(self, messages: Sequence[Mapping[str, str]], *, add_generation_prompt: bool = True) -> str:
        """The text of the conversation. Raises ``InvalidRequest`` when the template refuses the messages."""
        try:
            return self._template.render(
                messages=[dict(message) for message in messages],
                tools=None,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **self._tokens,
            )
        except _Refused as error:
            raise InvalidRequest(f"the chat template refuses the messages: {error}", param="messages") from error
        except Exception as error:  # a template is a program: it can fail in any way
            raise InvalidRequest(
                f"the chat template in {self.where} failed on these messages: {_why(error)}",
                param="messages",
            ) from error


class _Refused(jinja2.TemplateError):
    """The template called ``raise_exception``."""


class _Generation(jinja2.ext.Extension):
    """``{% generation %}`` marks the assistant's words for training; here its body is rendered as it stands."""

    tags = {"generation"}  # noqa: RUF012  # jinja2 declares it as a plain set

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise(message: str) -> NoReturn:
    raise _Refused(message)


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As published templates expect it: nothing escaped for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _named(template: Any) -> str | None:
    """The template itself, or the one called "default" of a list of them."""
    if isinstance(template, list):
        named = [e.get("template") for e in template if isinstance(e, dict) and e.get("name") == "default"]
        template = named[0] if named else None
    return template if isinstance(template, str) else None


def _content(token: Any) -> str | None:
    """A token's text: written plain, or as an object with ``content``."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None


def _why(error: Exception) -> str:
    return one_line(" ".join(str(error).split())) or type(error).__name__
