"""Grammars without a library: an answer is one of a few texts of bytes, and compiling ends when the test says so."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future

from enginebay.messages import StructuredOutput
from enginebay.structured import GrammarFailed, GrammarState, GrammarStore

VOCAB, EOS = 258, 257


class Words:
    """The state: what is written, of one of these texts. ``stuck`` texts cannot be followed any further."""

    def __init__(self, texts: Sequence[bytes], written: bytes = b"", stuck: Sequence[bytes] = ()) -> None:
        self.texts, self.written, self.stuck = tuple(texts), written, tuple(stuck)

    def copy(self) -> Words:
        return Words(self.texts, self.written, self.stuck)

    def accept(self, token_ids: Sequence[int]) -> int:
        count = self._allows(token_ids)
        self.written += bytes(token_ids[:count])
        return count

    def _allows(self, token_ids: Sequence[int]) -> int:
        count = 0
        for token_id in token_ids:
            if token_id > 255 or not self._begins(self.written + bytes([*token_ids[:count], token_id])):
                break
            count += 1
        return count

    def mask(self) -> bytes:
        allowed = {text[len(self.written)] for text in self.texts if self._goes_on(text)}
        allowed |= {EOS} if self.is_complete else set()
        return sum(1 << token for token in allowed).to_bytes((VOCAB + 31) // 32 * 4, "little")

    @property
    def is_complete(self) -> bool:
        return self.written in self.texts

    @property
    def error(self) -> str:
        return "it is too complex" if self.written in self.stuck else ""

    def _begins(self, written: bytes) -> bool:
        return any(text.startswith(written) for text in self.texts)

    def _goes_on(self, text: bytes) -> bool:
        return text.startswith(self.written) and len(text) > len(self.written)


class FakeCompiler:
    """``choice`` becomes its texts; a ``regex`` fails, with its own words. ``held``: nothing is done before ``go``.

    ``stuck`` are the beginnings after which no grammar can be followed.
    """

    def __init__(self, *, held: bool = False, stuck: Sequence[bytes] = ()) -> None:
        self.held, self.stuck = held, stuck
        self.asked: list[StructuredOutput] = []
        self.waiting: list[tuple[StructuredOutput, Future[GrammarState]]] = []
        self.error: GrammarFailed | None = None
        self.closed = 0

    def compile(self, structured: StructuredOutput) -> Future[GrammarState]:
        future: Future[GrammarState] = Future()
        self.asked.append(structured)
        self.waiting.append((structured, future))
        if not self.held:
            self.go()
        return future

    def go(self) -> None:
        waiting, self.waiting = self.waiting, []
        for structured, future in waiting:
            if not future.set_running_or_notify_cancel():
                continue
            if self.error is not None or structured.regex is not None:
                future.set_exception(self.error or _refusal(structured.regex or ""))
            else:
                future.set_result(Words([text.encode() for text in structured.choice], stuck=self.stuck))

    def close(self) -> None:
        self.closed += 1


def a_store(compiler: FakeCompiler, **more: int) -> GrammarStore:
    """A store over the fake."""
    return GrammarStore(
        compiler, get=lambda future: future.result(0), vocab_size=VOCAB, eos_token_ids=frozenset({EOS}), **more
    )


def _refusal(regex: str) -> GrammarFailed:
    return GrammarFailed(f"structured.regex cannot be used: {regex}", param="structured.regex")
