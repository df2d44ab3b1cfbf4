"""A model's chat template: found in its folder, and run in a child process with limits, since it is a program."""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from enginebay.errors import InvalidRequest, ModelError, RequestFailed, one_line
from enginebay.limited import Helper, HelperFailed, OverLimit
from enginebay.models._files import has_file, read_json, read_text

ROLES = ("assistant", "developer", "system", "tool", "user")
MAX_TEMPLATE_CHARS = 1 << 20
MAX_RENDERED_CHARS = 16 << 20
RENDER_SECONDS = 5.0
RENDER_MEMORY = 512 << 20
"""Bytes beyond what the child has when it starts."""

_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")
_MAX_REPLY = 6 * MAX_RENDERED_CHARS  # a character may be escaped


class ChatTemplate:
    """Turns messages into the text that a chat model was trained on. Make it with ``from_folder``.

    Decision: nothing of a template runs in our process, not even its compiler, which computes constants such as
    ``'a' * 300000000``. All templates of a process share one child; it is there while one of them is, and not closed.
    A violating change imports jinja2 outside of ``enginebay.limited``.
    """

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
        self.where, self._source, self._tokens, self._now = where, source, dict(tokens or {}), now
        self._helper: Helper | None = None
        if len(source) > MAX_TEMPLATE_CHARS:
            raise ModelError(
                one_line(f"the chat template in {where} has {len(source)} characters; at most {MAX_TEMPLATE_CHARS}")
            )
        try:
            found = self._ask({"source": source})
        except HelperFailed as error:
            raise ModelError(one_line(f"the chat template in {where} cannot be used: compiling it {error}")) from None
        if "broken" in found:
            raise ModelError(one_line(f"the chat template in {where} is broken: {found['broken']}"))
        self.words: tuple[str, ...] = tuple(found["words"])  # the strings it writes, compares with and looks for
        self.literals = "\0".join([*self.words, *found["texts"], *self._tokens.values()])

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
        config = read_json(config_path) if has_file(config_path) else {}
        source = read_text(own) if has_file(own) else _named(config.get("chat_template"))
        if source is None:
            return None
        tokens = {name: text for name in _TOKENS if (text := _content(config.get(name))) is not None}
        return cls(source, str(own if has_file(own) else config_path), tokens, now=now)

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
        """The text of the conversation. Raises ``InvalidRequest`` when the template refuses the messages, or fails.

        ``RequestFailed`` when the process that runs it is lost twice, by no limit of ours.
        """
        try:
            found = self._ask(
                {
                    "source": self._source,
                    "messages": [dict(message) for message in messages],
                    "tokens": self._tokens,
                    "add_generation_prompt": add_generation_prompt,
                    "now": self._now().isoformat(),
                    "most": MAX_RENDERED_CHARS,
                }
            )
        except OverLimit as error:
            raise _refusal(f"the chat template in {self.where} failed on these messages: it {error}") from None
        except HelperFailed as error:
            raise RequestFailed(
                one_line(f"the process that runs the chat template in {self.where} {error}; send the request again")
            ) from None
        if "refused" in found:
            raise _refusal(f"the chat template refuses the messages: {found['refused']}")
        if "text" not in found:
            why = found.get("failed") or found.get("broken")
            raise _refusal(f"the chat template in {self.where} failed on these messages: {why}")
        return str(found["text"])

    def close(self) -> None:
        """Let go of the child process, which ends with the last template; a later ``render`` starts it again."""
        self._helper = None

    def _ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        self._helper = self._helper or _shared_helper()
        try:
            return self._helper.call(request)
        except OverLimit:
            raise
        except HelperFailed:  # something else ended it, as far as can be told: a new one may do
            return self._helper.call(request)


def _refusal(message: str) -> InvalidRequest:
    return InvalidRequest(one_line(message), param="messages")


_shared: weakref.WeakValueDictionary[str, Helper] = weakref.WeakValueDictionary()


def _shared_helper() -> Helper:
    """The one that lives, or a new one."""
    helper = _shared.get("helper")
    if helper is None:  # two threads may both make one: each lives as long as its templates
        helper = _shared["helper"] = Helper(
            "enginebay.limited._templates", memory=RENDER_MEMORY, seconds=RENDER_SECONDS, max_reply=_MAX_REPLY
        )
    return helper


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
