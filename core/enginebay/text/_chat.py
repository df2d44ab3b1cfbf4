"""A conversation to token ids: the template's special tokens count, those inside a message are plain text.

Decision: a special token's string inside a message is broken up with a Unicode noncharacter that occurs nowhere in the
conversation, the template is rendered, and what is still whole came from the template. A violating change trusts a
rendered text as a whole: ``<|im_end|>`` typed by a user would then end the user's turn.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from enginebay.errors import InvalidRequest
from enginebay.text._template import ChatTemplate
from enginebay.text._tokenizer import Tokenizer

_NONCHARACTERS = [chr(code) for code in range(0xFDD0, 0xFDF0)]


def encode_chat(
    tokenizer: Tokenizer,
    template: ChatTemplate,
    messages: Sequence[Mapping[str, str]],
    *,
    add_generation_prompt: bool = True,
) -> list[int]:
    """The ids of a conversation: messages of ``role`` and ``content``, ready for the answer to follow.

    Raises ``InvalidRequest`` when the messages are none, or the template refuses them.
    """
    _check(messages)
    special = tokenizer.special_pattern()
    if special is None or not any(special.search(text) for message in messages for text in message.values()):
        return tokenizer.encode(template.render(messages, add_generation_prompt=add_generation_prompt), special=True)
    breaker, mark = _unused(messages)
    broken = [{key: _break(text, special, breaker) for key, text in message.items()} for message in messages]
    rendered = template.render(broken, add_generation_prompt=add_generation_prompt)
    if mark in rendered:
        raise InvalidRequest("the chat template writes Unicode noncharacters, which cannot be told from marks")
    ids: list[int] = []

    def note(match: re.Match[str]) -> str:
        start = match.start(match.lastgroup or 0)
        if rendered[start - 1 : start] == breaker:  # a token of one character, broken
            return match.group()
        token = match.group(match.lastgroup or 0)
        ids.append(next(i for i, special in tokenizer.special_tokens.items() if special.content == token))
        return mark

    marked = special.sub(note, rendered).replace(breaker, "")
    return tokenizer.encode_marked(marked, mark, ids)


def _check(messages: Sequence[Any]) -> None:
    """Clients send what they like; the types are only a promise."""
    if not messages:
        raise InvalidRequest("messages is empty", param="messages")
    for number, message in enumerate(messages):
        if not isinstance(message, Mapping) or not {"role", "content"} <= message.keys():
            raise InvalidRequest(f"messages[{number}] needs 'role' and 'content'", param="messages")
        for key, text in message.items():
            if not isinstance(key, str) or not isinstance(text, str):
                raise InvalidRequest(f"messages[{number}]: '{key}' is not text", param="messages")


def _unused(messages: Sequence[Mapping[str, str]]) -> tuple[str, str]:
    """Two noncharacters that occur in no message: one breaks tokens, one marks them."""
    used = set().union(*(set(text) for message in messages for text in message.values()))
    free = [character for character in _NONCHARACTERS if character not in used]
    if len(free) < 2:
        raise InvalidRequest("the messages use up the Unicode noncharacters U+FDD0 to U+FDEF", param="messages")
    return free[0], free[1]


def _break(text: str, special: re.Pattern[str], breaker: str) -> str:
    """``text`` with every special token broken after its first character; one of a single character, before it."""
    at = 0
    while match := special.search(text, at):
        start, end = match.span(match.lastgroup or 0)
        if end - start == 1:
            text, at = text[:start] + breaker + text[start:], start + 2
        else:  # its first character may be a token too: look at it again
            text, at = text[: start + 1] + breaker + text[start + 1 :], start
    return text
