"""A conversation to token ids: the template's control tokens count, those inside a message are plain text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from enginebay.errors import InvalidRequest, ModelError, one_line
from enginebay.text._apart import StandIns, render_apart
from enginebay.text._template import ROLES, ChatTemplate
from enginebay.text._tokenizer import MAX_TEXT_BYTES, Tokenizer

MAX_MESSAGES = 16_384
_SPACE = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))


def encode_chat(
    tokenizer: Tokenizer,
    template: ChatTemplate,
    messages: Sequence[Mapping[str, str]],
    *,
    add_generation_prompt: bool = True,
) -> list[int]:
    """The ids of a conversation: messages of ``role`` and ``content``, ready for the answer to follow.

    Raises ``InvalidRequest`` when the messages are none, or the template refuses them; ``ModelError`` when the
    tokenizer was made without this template and would take control tokens of it for text.
    """
    _check(messages)
    if (token := tokenizer.unguarded(template)) is not None:
        raise ModelError(
            f"the chat template in {template.where} writes {token!r}, which the tokenizer in {tokenizer.where} takes "
            "for text; load both from one folder"
        )
    if not any(tokenizer.may_hold_control(text) for message in messages for text in message.values()):
        return tokenizer.encode(template.render(messages, add_generation_prompt=add_generation_prompt), special=True)
    stand_ins = StandIns.unused(tokenizer.control_edges, messages, template)
    rendered = render_apart(tokenizer, template, messages, stand_ins, add_generation_prompt=add_generation_prompt)
    if stand_ins.mark in rendered:
        raise InvalidRequest("the chat template writes Unicode noncharacters, which cannot be told from marks")
    marked, controls = _mark(tokenizer, rendered, stand_ins.mark)
    text = rendered.translate(stand_ins.back)
    if _spans(tokenizer, text) == _spans(tokenizer, rendered):  # a mere "<" somewhere: read it as others do, and check
        ids = tokenizer.encode(text, special=True)
        if [i for i in ids if i in tokenizer.control_tokens] == controls:
            return ids
    return tokenizer.encode_marked(marked.translate(stand_ins.back), stand_ins.mark, controls)


def _spans(tokenizer: Tokenizer, text: str) -> list[tuple[int, int]]:
    return [match.span() for match in tokenizer.control_pattern.finditer(text)]


def _mark(tokenizer: Tokenizer, rendered: str, mark: str) -> tuple[str, list[int]]:
    """``rendered`` with each control token, and the space that it swallows, replaced by ``mark``; and their ids."""
    by_text = {token.content: (i, token) for i, token in reversed(tokenizer.control_tokens.items())}
    pieces, ids, at, swallow = [], [], 0, False
    for match in tokenizer.control_pattern.finditer(rendered):
        token_id, token = by_text[match.group()]
        piece = rendered[at : match.start()]
        piece = piece.lstrip(_SPACE) if swallow else piece
        pieces.append(piece.rstrip(_SPACE) if token.lstrip else piece)
        ids.append(token_id)
        at, swallow = match.end(), token.rstrip
    pieces.append(rendered[at:].lstrip(_SPACE) if swallow else rendered[at:])
    return mark.join(pieces), ids


def _check(messages: Sequence[Any]) -> None:
    """Clients send what they like; the types are only a promise."""
    if not messages:
        raise InvalidRequest("messages is empty", param="messages")
    if len(messages) > MAX_MESSAGES:
        raise InvalidRequest(f"there are {len(messages)} messages; at most {MAX_MESSAGES} are taken", param="messages")
    total = 0
    for number, message in enumerate(messages):
        if not isinstance(message, Mapping) or not {"role", "content"} <= message.keys():
            raise InvalidRequest(f"messages[{number}] needs 'role' and 'content'", param="messages")
        for key, text in message.items():
            if not isinstance(key, str) or not isinstance(text, str):
                raise InvalidRequest(one_line(f"messages[{number}]: '{key}' is not text"), param="messages")
            total += len(key) + len(text)
        if message["role"] not in ROLES:  # it stands among control tokens, so it is no place for any text
            raise InvalidRequest(
                f"messages[{number}]: role {message['role'][:40]!r} is none of {', '.join(ROLES)}", param="messages"
            )
    if total > MAX_TEXT_BYTES:
        raise InvalidRequest(
            f"the messages have {total} characters; at most {MAX_TEXT_BYTES >> 20} MiB are tokenized", param="messages"
        )
