"""The child that compiles a client's grammar before our own process does: the library can overflow its stack, or hang.

Decision: a compiled grammar cannot be handed from one process to another, so ours compiles again what compiled here
within the limits, on a stack that is an eighth as large. A violating change compiles in our process first.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import llguidance._tokenizer  # nothing can be opened any more when it is first used
import llguidance.gbnf_to_lark  # noqa: F401  # see above
import tokenizers  # noqa: F401  # see above

from enginebay.limited._serve import serve
from enginebay.structured._definitions import definition_of, may_force_much, unforced
from enginebay.structured._llguidance import first_fault
from enginebay.structured._vocabulary import Vocabulary, load_vocabulary

_STACK = 1 << 20
"""Bytes: an eighth of what a thread usually has, so that what passes here is far from the end of another's stack."""
_MAX_WHY = 500

_vocabulary: list[Vocabulary] = []


def handle(request: dict[str, Any]) -> dict[str, Any]:
    """``tokenizer`` makes a vocabulary, once; then each call compiles: the definition, or why it is ``broken``.

    ``empty``, the answer to an empty call, is whether there is none yet. ``late``: a grammar was not done after so many
    ``seconds``, and this process is of no use any more.
    """
    if "tokenizer" in request:
        return _guarded(lambda: _load(request))
    if "kind" not in request:
        return {"empty": not _vocabulary}
    found: list[dict[str, Any]] = []
    threading.stack_size(_STACK)
    thread = threading.Thread(target=lambda: found.append(_guarded(lambda: _compile(request))), daemon=True)
    thread.start()
    thread.join(request["seconds"])
    if not found:
        return {"late": True}
    if found[0].get("memory"):
        raise MemoryError
    return found[0]


def _load(request: dict[str, Any]) -> dict[str, Any]:
    _vocabulary[:] = [load_vocabulary(request["tokenizer"], request["vocab_size"], request["eos_token_ids"])]
    return {}


def _compile(request: dict[str, Any]) -> dict[str, Any]:
    kind, value = request["kind"], request["value"]
    definition = definition_of(kind, value)
    fault = None if may_force_much(kind, value) else _fault(definition)
    if fault is None or (fault and not _fault(unforced(definition))):
        definition = unforced(definition)
        fault = _fault(definition)
    return {"broken": _why(fault)} if fault else {"definition": definition}


def _fault(definition: str) -> str:
    """By this thread's own time of computing, which does not depend on what else the machine does."""
    return first_fault(_vocabulary[0], definition, time.thread_time)


def _guarded(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What the work answers, or why it failed: the library's parsers do so in any way."""
    try:
        return work()
    except MemoryError:
        return {"memory": True}
    except Exception as error:
        return {"broken": _why(str(error) or type(error).__name__)}
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # pyo3's panic derives from BaseException
            raise
        return {"broken": _why(str(error))}


def _why(message: str) -> str:
    """Of several lines the first, and those that begin with "error:"; the others draw a picture of the place."""
    first, *others = message[: 16 * _MAX_WHY].splitlines() or [""]
    lines = [first, *(line for line in others if line.startswith("error:"))]
    return " ".join(" ".join(lines).split())[:_MAX_WHY]


if __name__ == "__main__":
    sys.exit(serve(handle))
