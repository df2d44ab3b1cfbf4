"""Compiles grammars in a thread beside the engine's: first in a child process that may die of one, then here.

The child has limits on time, memory and stack; the library has some of its own on size and work. What compiled there
compiles here in the same time, with the interpreter's lock given back.

Decision: it compiles here once for each request, and in the child once. The library's copies of a state share its
lexer, and so the limit on the lexer's states: what one answer used up would end every other one of the same shape. A
violating change hands out copies of one state.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Collection
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from enginebay.errors import one_line
from enginebay.limited import Helper, HelperFailed, OverLimit
from enginebay.messages import StructuredOutput
from enginebay.runtime import Channel, Runtime, Thread
from enginebay.structured._definitions import form_of
from enginebay.structured._interfaces import GrammarFailed, GrammarState, GrammarUnavailable
from enginebay.structured._meter import Meter

if TYPE_CHECKING:
    from enginebay.structured._vocabulary import Vocabulary

__all__ = ["COMPILE_MEMORY", "COMPILE_SECONDS", "HelperCompiler"]

COMPILE_SECONDS: Final = 10.0
"""For one grammar, in the child."""
COMPILE_MEMORY: Final = 1 << 30
"""Bytes that the child may take beside what it has at its start: its vocabulary, and one grammar at a time."""

_KEPT: Final = 128
"""Definitions, and failures, that are remembered."""
_CALL_SECONDS: Final = 60.0
_MAX_REPLY: Final = 16 << 20
_LOOK_SECONDS: Final = 5.0
_END_SECONDS: Final = 5.0
_MAX_WHY: Final = 600
_ADVICE: Final = {
    "json_schema": "change that part of the schema, or leave it out",
    "regex": "write it in the syntax of Rust's regex, and simpler where it is too large",
    "ebnf": "write it in Lark from the rule start, or in GBNF from the rule root, and simpler where it is too large",
    "choice": "give other texts, or fewer",
    "tools": "change that part of the tools' parameters, or leave it out",
}


class HelperCompiler:
    """Compiles one grammar after the other. The thread and the child start with the first one.

    ``tokenizer`` returns a tokenizer.json's text, when it is needed; masks are ``vocab_size`` tokens wide.
    ``measured``: an answer whose masks take too long ends. An engine that must do as others do cannot have that.
    """

    def __init__(
        self,
        runtime: Runtime,
        *,
        tokenizer: Callable[[], str],
        vocab_size: int,
        eos_token_ids: Collection[int],
        seconds: float = COMPILE_SECONDS,
        memory: int = COMPILE_MEMORY,
        kept: int = _KEPT,
        measured: bool = True,
    ) -> None:
        self._runtime = runtime
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._eos_token_ids = sorted(eos_token_ids)
        self._seconds = seconds
        self._helper = Helper("enginebay.structured._child", memory=memory, seconds=_CALL_SECONDS, max_reply=_MAX_REPLY)
        self._jobs: deque[tuple[StructuredOutput, Future[GrammarState]]] = deque()
        self._bell: Channel | None = None
        self._thread: Thread | None = None
        self._closed = False
        self._vocabulary: Vocabulary | None = None
        self._kept = kept
        self._now = runtime.clock.thread_time if measured else None
        self._tried: dict[StructuredOutput, str | GrammarFailed] = {}
        """What each became in the child, in the order of their last use."""

    def compile(self, structured: StructuredOutput) -> Future[GrammarState]:
        """See ``GrammarCompiler``."""
        future: Future[GrammarState] = Future()
        if not self._eos_token_ids:
            future.set_exception(
                GrammarFailed("structured needs a model with a token that ends an answer: leave it out")
            )
            return future
        self._jobs.append((structured, future))
        if self._closed:
            self._fail_all()
            return future
        if self._bell is None:
            self._bell, ear = self._runtime.transport.pair("grammars")
            self._thread = self._runtime.spawner.thread("enginebay-grammars", lambda: self._run(ear))
        self._bell.send(b"")
        return future

    def close(self) -> None:
        """See ``GrammarCompiler``: the child is killed, and the thread ends."""
        self._closed = True
        if self._bell is not None and self._thread is not None:
            self._bell.close()
            self._helper.kill()
            self._thread.join(_END_SECONDS)
        self._fail_all()

    def _run(self, ear: Channel) -> None:
        """The thread's body."""
        while not self._closed:
            try:
                ear.receive(self._runtime.clock.now() + _LOOK_SECONDS)
            except TimeoutError:
                continue
            while self._jobs and not self._closed:
                self._work(*self._jobs.popleft())
        self._helper.close()
        self._fail_all()

    def _work(self, structured: StructuredOutput, future: Future[GrammarState]) -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(self._compiled(structured))
        except GrammarFailed as error:
            future.set_exception(error)
        except BaseException as error:  # pyo3's panic derives from BaseException
            future.set_exception(GrammarUnavailable(_line(f"{type(error).__name__}: {error}")))

    def _compiled(self, structured: StructuredOutput) -> GrammarState:
        from enginebay.structured._llguidance import new_state
        from enginebay.structured._vocabulary import load_vocabulary

        definition = self._definition(structured)
        if self._vocabulary is None:
            self._vocabulary = load_vocabulary(self._tokenizer(), self._vocab_size, self._eos_token_ids)
        try:
            return new_state(self._vocabulary, definition, Meter(self._now))
        except ValueError as error:
            raise _named(form_of(structured)[0], GrammarFailed(str(error))) from None

    def _definition(self, structured: StructuredOutput) -> str:
        """What compiled in the child: now, or when it was asked for before. What failed there fails again, untried."""
        found = self._tried.pop(structured, None)
        if found is None:
            try:
                found = self._try(structured)
            except GrammarUnavailable:
                raise
            except _Unreadable as error:
                found = error
            except GrammarFailed as error:
                found = _named(form_of(structured)[0], error)
        self._tried[structured] = found
        if len(self._tried) > self._kept:
            del self._tried[next(iter(self._tried))]
        if isinstance(found, GrammarFailed):
            raise GrammarFailed(str(found), param=found.param)  # each its own, since a traceback is added to it
        return found

    def _try(self, structured: StructuredOutput) -> str:
        """The definition that compiled in the child."""
        kind, value = form_of(structured)
        request = {"kind": kind, "value": value, "seconds": self._seconds}
        try:
            found = self._call(request)
        except OverLimit as error:
            raise GrammarFailed(f"compiling it {error}") from None
        except HelperFailed:  # perhaps something else ended it: once more
            try:
                found = self._call(request)
            except HelperFailed as error:
                raise GrammarFailed(f"compiling it {error}") from None
        if found.get("late"):
            self._helper.close()
            raise GrammarFailed(f"compiling it took longer than {self._seconds:g} s and was stopped")
        if "definition" not in found:
            raise GrammarFailed(str(found.get("broken", "it does not compile")))
        return str(found["definition"])

    def _call(self, request: dict[str, Any]) -> dict[str, Any]:
        self._prepare_child()
        return self._helper.call(request)

    def _prepare_child(self) -> None:
        """One that has just started has no vocabulary. What fails here is no grammar's fault."""
        with suppress(HelperFailed):  # it died between two calls: the next one starts another
            if not self._helper.call({}).get("empty"):
                return
        asked = {"vocab_size": self._vocab_size, "eos_token_ids": self._eos_token_ids}
        try:
            found = self._helper.call(asked | {"tokenizer": self._tokenizer()})
        except HelperFailed as error:
            raise GrammarUnavailable(_line(f"no grammar can be compiled: the helper {error}")) from None
        if "broken" in found:
            raise _Unreadable(
                _line(f"structured does not work with the model's tokenizer: {found['broken']}; leave it out")
            )

    def _fail_all(self) -> None:
        while self._jobs:
            _, future = self._jobs.popleft()
            if future.set_running_or_notify_cancel():
                future.set_exception(GrammarUnavailable("the engine is closed"))


class _Unreadable(GrammarFailed):
    """No grammar works with the model, whatever it is."""


def _named(form: str, error: GrammarFailed) -> GrammarFailed:
    """The same with the field at fault, and what to do about it."""
    param, advice = f"structured.{form}", _ADVICE[form]
    why = " ".join(str(error).split())
    if form != "ebnf":  # else the place is in the client's own text
        why = re.sub(r"^at \d+\(\d+\): ", "", why)
    why = one_line(why, _MAX_WHY - len(param) - len(advice) - 25)
    return GrammarFailed(_line(f"{param} cannot be used: {why}; {advice}"), param=param)


def _line(message: str) -> str:
    return one_line(" ".join(message.split()), _MAX_WHY)
