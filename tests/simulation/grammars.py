"""The grammars of the simulation: compiled at once, and followed token by token."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future

from enginebay.engine.grammars import Grammars
from enginebay.messages import StructuredOutput
from enginebay.structured import GrammarState, GrammarStore
from simulation.plan import EOS, VOCAB
from simulation.reference import forbidden

__all__ = ["MAX_DRAFTS", "SHAPE", "grammars_of"]

SHAPE = StructuredOutput(regex="[a-zA-Z]*")
"""What a shaped request asks for; the simulated compiler has one grammar only."""

MAX_DRAFTS = 3
_WIDTH = (VOCAB + 31) // 32 * 4


class _State:
    """Answer so far: all that its masks are made of is the sum of its tokens."""

    is_complete = True
    error = ""

    def __init__(self, total: int = 0) -> None:
        self._total = total

    def copy(self) -> _State:
        return _State(self._total)

    def accept(self, token_ids: Sequence[int]) -> int:
        count = 0
        for token_id in token_ids:
            if token_id in forbidden((self._total,)):
                break
            self._total, count = self._total + token_id, count + 1
        return count

    def mask(self) -> bytes:
        banned = sum([1 << token for token in forbidden((self._total,))])
        return ((1 << VOCAB) - 1 & ~banned).to_bytes(_WIDTH, "little")


class _Compiler:
    def compile(self, structured: StructuredOutput) -> Future[GrammarState]:
        future: Future[GrammarState] = Future()
        future.set_result(_State())
        return future

    def close(self) -> None: ...


def grammars_of() -> Grammars:
    """Those of one core."""
    store = GrammarStore(
        _Compiler(), get=lambda future: future.result(0), vocab_size=VOCAB, eos_token_ids=frozenset({EOS})
    )
    return Grammars(store)
