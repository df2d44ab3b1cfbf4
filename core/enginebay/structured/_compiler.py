"""Compiles grammars in threads beside the engine's: first in a child process that may die of one, then here.

The child has limits on time, memory and stack; the library has some of its own on size and work. What compiled there
compiles here in the same time, with the interpreter's lock given back.

Decision: it compiles here once for each request, and in the child once. The library's copies of a state share its
lexer, and so the limit on the lexer's states: what one answer used up would end every other one of the same shape. A
violating change hands out copies of one state.

Decision: three lines. What is known is compiled in one of its own. What is new is tried for a short time; when that is
over it is tried anew in the line of the slow, which has a child of its own. So a client whose shapes are slow holds up
those of others by that short time each, and by a child's start. A violating change lets all wait for one another.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from enginebay.errors import one_line
from enginebay.messages import StructuredOutput
from enginebay.runtime import Runtime
from enginebay.structured._definitions import form_of
from enginebay.structured._interfaces import GrammarFailed, GrammarState, GrammarUnavailable
from enginebay.structured._line import Line
from enginebay.structured._meter import Meter
from enginebay.structured._trying import TooSlow, Trial, Unreadable

if TYPE_CHECKING:
    from enginebay.structured._vocabulary import Vocabulary

__all__ = ["COMPILE_MEMORY", "COMPILE_SECONDS", "HelperCompiler"]

COMPILE_SECONDS: Final = 10.0
"""For one grammar, in the child."""
COMPILE_MEMORY: Final = 1 << 30
"""Bytes that a child may take beside what it has at its start: its vocabulary, and one grammar at a time."""

_QUICK_SECONDS: Final = 0.5
"""What a new shape may take before it goes to the slow ones: usual ones take some milliseconds."""
_KEPT: Final = 128
"""Definitions, and failures, that are remembered."""
_END_SECONDS: Final = 5.0
_MAX_WHY: Final = 600
_CLOSED: Final = "the engine is closed"
_ADVICE: Final = {
    "json_schema": "change that part of the schema, or leave it out",
    "regex": "write it in the syntax of Rust's regex, and simpler where it is too large",
    "ebnf": "write it in Lark from the rule start, or in GBNF from the rule root, and simpler where it is too large",
    "choice": "give other texts, or fewer",
    "tools": "change that part of the tools' parameters, or leave it out",
}


class HelperCompiler:
    """Compiles what it is asked to, in threads and children that start when there is something to do. Thread-safe.

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
        quick_seconds: float = _QUICK_SECONDS,
        memory: int = COMPILE_MEMORY,
        kept: int = _KEPT,
        measured: bool = True,
    ) -> None:
        eos = sorted(eos_token_ids)
        self._load = partial(_load, tokenizer, vocab_size, eos)
        self._can_end = bool(eos)
        self._known = Line(runtime, "grammars")
        self._lanes = tuple(
            _Lane(
                Line(runtime, name),
                Trial(tokenizer, vocab_size=vocab_size, eos_token_ids=eos, seconds=limit, memory=memory),
            )
            for name, limit in (("grammars-new", min(quick_seconds, seconds)), ("grammars-slow", seconds))
        )
        self._kept = kept
        self._now = runtime.clock.thread_time if measured else None
        self._closed = False
        self._vocabulary: Vocabulary | None = None
        self._vocabulary_lock = threading.Lock()
        self._lock = threading.Lock()  # of what follows
        self._waiting: dict[StructuredOutput, list[Future[GrammarState]]] = {}
        """Those that are being tried, with who asked."""
        self._tried: dict[StructuredOutput, _Definition | GrammarFailed] = {}
        """What each became in the child, in the order of their last use."""

    def compile(self, structured: StructuredOutput) -> Future[GrammarState]:
        """See ``GrammarCompiler``."""
        future: Future[GrammarState] = Future()
        if not self._can_end:
            future.set_exception(
                GrammarFailed("structured needs a model with a token that ends an answer: leave it out")
            )
            return future
        with self._lock:
            found = self._tried.pop(structured, None)
            if found is not None:
                self._tried[structured] = found
            elif structured in self._waiting:
                self._waiting[structured].append(future)
                return future
            else:
                self._waiting[structured] = [future]
        if found is None:
            self._lanes[0].line.put(partial(self._try, structured, 0))
        elif isinstance(found, GrammarFailed):
            self._fail([future], found)
        else:
            line = self._lanes[-1].line if found.slow else self._known
            line.put(partial(self._build, structured, found, [future]))
        return future

    def close(self) -> None:
        """See ``GrammarCompiler``: the children are killed, and the threads end."""
        self._closed = True
        for lane in self._lanes:
            lane.trial.helper.shut()
        for line in (*(lane.line for lane in self._lanes), self._known):
            line.close(_END_SECONDS)
        for lane in self._lanes:
            lane.trial.helper.close()
        with self._lock:
            left, self._waiting = self._waiting, {}
        for futures in left.values():
            self._fail(futures, GrammarUnavailable(_CLOSED))

    def _try(self, structured: StructuredOutput, number: int) -> None:
        """Let a shape compile in a lane's child, and answer those who wait for it: in the lane's own thread."""
        with self._lock:
            waiting = self._waiting.get(structured, ())
            if all(future.cancelled() for future in waiting):
                self._waiting.pop(structured, None)
                return
        is_last = number == len(self._lanes) - 1
        found: _Definition | GrammarFailed
        try:
            found = _Definition(self._lanes[number].trial.definition(structured), slow=is_last)
        except TooSlow as error:
            if not is_last:
                self._lanes[number + 1].line.put(partial(self._try, structured, number + 1))
                return
            found = _named(form_of(structured)[0], error)
        except (GrammarUnavailable, Unreadable) as error:
            found = error
        except GrammarFailed as error:
            found = _named(form_of(structured)[0], error)
        except BaseException as error:  # pyo3's panic derives from BaseException
            found = _unavailable(error)
        with self._lock:
            futures = self._waiting.pop(structured, [])
            if not isinstance(found, GrammarUnavailable):
                self._tried[structured] = found
                if len(self._tried) > self._kept:
                    del self._tried[next(iter(self._tried))]
        if isinstance(found, GrammarFailed):
            self._fail(futures, found)
        elif is_last:
            self._build(structured, found, futures)
        else:
            self._known.put(partial(self._build, structured, found, futures))

    def _build(
        self, structured: StructuredOutput, definition: _Definition, futures: Collection[Future[GrammarState]]
    ) -> None:
        """Compile it here, for each who asked."""
        from enginebay.structured._llguidance import new_state

        for future in futures:
            if not future.set_running_or_notify_cancel():
                continue
            try:
                if self._closed:
                    raise GrammarUnavailable(_CLOSED)
                future.set_result(new_state(self._own_vocabulary(), definition.text, Meter(self._now)))
            except GrammarUnavailable as error:
                future.set_exception(error)
            except ValueError as error:
                future.set_exception(_named(form_of(structured)[0], GrammarFailed(str(error))))
            except BaseException as error:  # pyo3's panic derives from BaseException
                future.set_exception(_unavailable(error))

    def _own_vocabulary(self) -> Vocabulary:
        with self._vocabulary_lock:
            if self._vocabulary is None:
                self._vocabulary = self._load()
            return self._vocabulary

    @staticmethod
    def _fail(futures: Collection[Future[GrammarState]], error: GrammarFailed) -> None:
        for future in futures:
            if future.set_running_or_notify_cancel():  # each its own, since a traceback is added to it
                kind = GrammarUnavailable if isinstance(error, GrammarUnavailable) else GrammarFailed
                future.set_exception(kind(str(error), param=error.param))


class _Definition(NamedTuple):
    """What compiled in a child, and whether it took long there, as it then does here."""

    text: str
    slow: bool


class _Lane(NamedTuple):
    """A thread with a child."""

    line: Line
    trial: Trial


def _load(tokenizer: Callable[[], str], vocab_size: int, eos_token_ids: Sequence[int]) -> Vocabulary:
    from enginebay.structured._vocabulary import load_vocabulary

    return load_vocabulary(tokenizer(), vocab_size, eos_token_ids)


def _unavailable(error: BaseException) -> GrammarUnavailable:
    return GrammarUnavailable(_line(f"{type(error).__name__}: {error}"))


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
