"""The grammars of the live requests: each has a state of its own, advanced when tokens are committed.

A request's state is a function of its committed tokens: proposals are looked at on a copy. A step that is void leaves
it as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future

from enginebay.errors import InvalidRequest, RequestError, RequestFailed
from enginebay.messages import GrammarOutput, StructuredOutput
from enginebay.structured._interfaces import (
    GrammarCompiler,
    GrammarFailed,
    GrammarRejected,
    GrammarState,
    GrammarUnavailable,
)

__all__ = ["GrammarStore"]

Get = Callable[[Future[GrammarState]], GrammarState]


class GrammarStore:
    """The grammars by request id. Called from one thread; nothing in it waits, except ``settle``.

    ``get`` takes a done future's result; ``vocab_size`` is the width of the masks in tokens.
    """

    def __init__(self, compiler: GrammarCompiler, *, get: Get, vocab_size: int, eos_token_ids: Collection[int]) -> None:
        self._compiler = compiler
        self._get = get
        self._words = (vocab_size + 31) // 32
        self._eos_token_ids = frozenset(eos_token_ids)
        self._open: dict[str, _Grammar] = {}

    def __len__(self) -> int:
        return len(self._open)

    def open(self, request_id: str, structured: StructuredOutput, committed_ids: Sequence[int] = ()) -> None:
        """Begin to compile a request's grammar; its state will be that after ``committed_ids``."""
        assert request_id not in self._open, f"the grammar of {request_id!r} is open already"
        self._open[request_id] = _Grammar(self._compiler.compile(structured), tuple(committed_ids))

    def ready(self, request_id: str) -> bool:
        """Whether it is known how the compiling went: the request may be scheduled, unless ``error`` says why not."""
        grammar = self._open[request_id]
        if grammar.state is None and not grammar.error:
            if not grammar.future.done():
                return False
            self._begin(grammar)
        return True

    def error(self, request_id: str) -> RequestError | None:
        """Why the request's grammar cannot be used: ``InvalidRequest`` where that is the client's fault."""
        grammar = self._open[request_id]
        if not grammar.error:
            return None
        if grammar.param is None:
            return RequestFailed(grammar.error)
        return InvalidRequest(grammar.error, param=grammar.param)

    def accept(self, request_id: str, token_ids: Sequence[int]) -> int:
        """Go on by tokens that are about to be committed; returns how many that are.

        Raises ``GrammarRejected`` when they leave the grammar, or it could not be followed any further.
        """
        grammar = self._open[request_id]
        if not grammar.error:
            self._advance(grammar, token_ids)
        if grammar.error:
            raise GrammarRejected(grammar.error)
        return len(token_ids)

    def masks(self, scheduled: Sequence[tuple[str, tuple[int, ...]]]) -> GrammarOutput:
        """What may come next in each request, and after each of its proposals: one row more than there are of them."""
        ids: list[str] = []
        rows: list[bytes] = []
        anything = b"\xff" * (4 * self._words)
        for request_id, drafts in scheduled:
            grammar = self._open[request_id]
            state = self._state(grammar)
            ids += [request_id] * (1 + len(drafts))
            rows.append(self._row(state))
            grammar.error = grammar.error or state.error
            ahead = state.copy() if drafts else None
            for draft in drafts:
                if ahead is not None and (draft in self._eos_token_ids or not ahead.accept((draft,))):
                    ahead = None  # never drawn after the row before it: what follows does not matter
                rows.append(anything if ahead is None else self._row(ahead))
        return GrammarOutput(request_ids=tuple(ids), bitmask=b"".join(rows), words_per_row=self._words)

    def close(self, request_id: str) -> None:
        """Forget the request, if it is known; what nobody waits for any more is not compiled."""
        grammar = self._open.pop(request_id, None)
        if grammar is not None:
            grammar.future.cancel()  # one that is being compiled goes on, and is remembered

    def settle(self, request_id: str, wait: Get) -> None:
        """Wait until the request is ready: ``wait`` returns a future's result, or raises, within a bound."""
        grammar = self._open[request_id]
        if grammar.state is None and not grammar.error:
            self._begin(grammar, wait)

    def shut(self) -> None:
        """End the compiler. Idempotent."""
        self._compiler.close()

    def _begin(self, grammar: _Grammar, get: Get | None = None) -> None:
        try:
            grammar.state = (get or self._get)(grammar.future)
        except GrammarUnavailable as error:
            grammar.error = str(error)
        except GrammarFailed as error:
            grammar.error, grammar.param = str(error), error.param
        except TimeoutError as error:
            grammar.error = str(error)
        else:
            self._advance(grammar, grammar.committed_ids)

    def _advance(self, grammar: _Grammar, token_ids: Sequence[int]) -> None:
        state = self._state(grammar)
        body = self._before_eos(token_ids)
        count = state.accept(body)
        if count < len(body):
            grammar.error = state.error or f"token {body[count]} does not fit its grammar"
        elif count < len(token_ids) and not state.is_complete:
            grammar.error = f"token {token_ids[count]} ends the answer before its grammar does"

    def _row(self, state: GrammarState) -> bytes:
        row = state.mask()
        assert len(row) == 4 * self._words, f"a mask of {len(row)} bytes for {self._words} words"
        return row

    def _state(self, grammar: _Grammar) -> GrammarState:
        assert grammar.state is not None, "only a request that is ready is scheduled"
        return grammar.state

    def _before_eos(self, token_ids: Sequence[int]) -> Sequence[int]:
        for count, token_id in enumerate(token_ids):
            if token_id in self._eos_token_ids:
                return token_ids[:count]
        return token_ids


class _Grammar:
    """One request's. ``error``: it ends with it; ``param`` is the field at fault, where the client's own request is."""

    def __init__(self, future: Future[GrammarState], committed_ids: tuple[int, ...]) -> None:
        self.future = future
        self.committed_ids = committed_ids
        self.state: GrammarState | None = None
        self.error = ""
        self.param: str | None = None
