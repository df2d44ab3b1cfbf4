"""What users wrote kept apart from what a chat template writes, through the template and back.

Decision: every character in a message with which a control token could begin or end is replaced by a stand-in, a
Unicode noncharacter that occurs nowhere else; the template is rendered, the control tokens that are whole then are the
template's, and the stand-ins turn back. So none can come from a message, nor form where two pieces of text meet,
whatever the template does with them. (A template that writes both ends of a token around a message, ``<|`` and ``|>``,
makes one of it by intent; around roles they do, and roles are known names.) One exception keeps templates working that
look into messages (what comes before ``</think>``, say): words that such a template looks for stay as they are, in
messages of the role that it looks at, unless they are or touch a special token. A violating change trusts rendered text
as a whole, or breaks known tokens only: ``<|im_<think>end|>`` becomes one when the template removes ``<think>``.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from enginebay.errors import InvalidRequest
from enginebay.text._template import ChatTemplate
from enginebay.text._tokenizer import MARKS, Tokenizer

Messages = Sequence[Mapping[str, str]]
Word = tuple[str, str]  # a role, and a text that stays as it is in messages of this role
_NONCHARACTERS = [
    *(chr(code) for code in range(0xFDD0, 0xFDF0)),
    *(chr(plane << 16 | low) for plane in range(17) for low in (0xFFFE, 0xFFFF)),
]


@dataclass(frozen=True, slots=True)
class StandIns:
    """A stand-in for each character that matters, there and back, and a character that marks whole tokens."""

    there: dict[int, str]
    back: dict[int, str]
    mark: str

    @classmethod
    def unused(cls, edges: frozenset[str], messages: Messages, template: ChatTemplate) -> StandIns:
        """Stand-ins for ``edges`` that occur in no message nor the template; raises ``InvalidRequest`` without any."""
        used = set(template.literals).union(*(text for message in messages for text in message.values()))
        marks = [mark for mark in MARKS if mark not in used]
        free = [character for character in _NONCHARACTERS if character not in used and character not in MARKS]
        if not marks or len(free) < len(edges):
            raise InvalidRequest(
                "the messages use up the Unicode noncharacters (U+FDD0 and U+FDD1, or most others) that keep text "
                "apart from control tokens",
                param="messages",
            )
        pairs = list(zip(sorted(edges), free, strict=False))
        return cls({ord(edge): free for edge, free in pairs}, {ord(free): edge for edge, free in pairs}, marks[0])

    def hide(self, messages: Messages, keep: Collection[Word]) -> list[dict[str, str]]:
        """The messages with stand-ins; roles, which are known names, and the words to keep stay."""
        hidden = []
        for message in messages:
            words = sorted((word for role, word in keep if role == message["role"]), key=len, reverse=True)
            hidden.append({k: text if k == "role" else self._hide(text, words) for k, text in message.items()})
        return hidden

    def _hide(self, text: str, words: list[str]) -> str:
        pieces = re.split(f"({'|'.join(map(re.escape, words))})", text) if words else [text]
        pieces[::2] = [piece.translate(self.there) for piece in pieces[::2]]
        return "".join(pieces)


def render_apart(
    tokenizer: Tokenizer,
    template: ChatTemplate,
    messages: Messages,
    stand_ins: StandIns,
    *,
    add_generation_prompt: bool,
) -> str:
    """The rendered conversation with stand-ins in it: control tokens that are whole there are the template's."""

    def render(keep: Collection[Word]) -> str:
        return template.render(stand_ins.hide(messages, keep), add_generation_prompt=add_generation_prompt)

    def shown(rendered: str) -> str:
        return rendered.translate(stand_ins.back)

    safe = render(())
    keep = _candidates(tokenizer, template, messages)
    if not keep or shown(looking := render(keep)) == shown(safe):
        return safe
    for word in [word for word in keep if any(t.content in word[1] for t in tokenizer.control_tokens.values())]:
        rest = [other for other in keep if other != word]
        if shown(without := render(rest)) == shown(looking):  # the template does not look for this one here
            keep, looking = rest, without
    same = _special(tokenizer, looking) == _special(tokenizer, safe)
    return looking if same else safe  # the last line of defence: a template that cuts up the very words it looks for


def _candidates(tokenizer: Tokenizer, template: ChatTemplate, messages: Messages) -> list[Word]:
    """The words with such characters that the template may look for, and some message has."""
    found = {
        (message["role"], word): None
        for word in template.words
        if not tokenizer.control_edges.isdisjoint(word)
        for message in messages
        if any(word in text for key, text in message.items() if key != "role")
    }
    words = {word: _stays_text(tokenizer, word) for _, word in found}
    return [pair for pair in found if words[pair[1]]]


def _stays_text(tokenizer: Tokenizer, word: str) -> bool:
    """Whether a message may hold ``word`` whole: it has no special token, and no piece of a control token at an end."""
    for token in tokenizer.control_tokens.values():
        text = token.content
        if (token.special and text in word) or (word in text and word != text):
            return False
        if any(word.endswith(text[:cut]) or word.startswith(text[cut:]) for cut in range(1, len(text))):
            return False
    return True


def _special(tokenizer: Tokenizer, rendered: str) -> list[str]:
    special = {token.content for token in tokenizer.control_tokens.values() if token.special}
    return [match.group() for match in tokenizer.control_pattern.finditer(rendered) if match.group() in special]
