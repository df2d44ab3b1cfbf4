"""The child that tries a tokenizer.json before our own process loads it: the library behind it can abort, or hang."""

from __future__ import annotations

import sys
from typing import Any

import tokenizers

from enginebay.limited._serve import serve

_TEXTS = (
    "",
    "Hello, world! It's 1984.\n\n\tif (a[0] == b) { return '#'; }",
    "é日本語🦜 ﷺ نص हिन्दी ｱ①Å\u200d\u0301",
    *(unit * 40 + "!" for unit in ("a", "ab", "0", " ", "\n", "'", "é", "日")),
)
_MANY = 64
_MAX_WHY = 1000


def handle(request: dict[str, Any]) -> dict[str, Any]:
    """``text`` is the file's content. ``broken`` says why it cannot be used; nothing: ordinary use goes well."""
    try:
        _try(request["text"])
    except MemoryError:
        raise
    except Exception as error:
        return {"broken": _why(error)}
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # pyo3's panic derives from BaseException
            raise
        return {"broken": _why(error)}
    return {}


def _try(text: str) -> None:
    loaded = tokenizers.Tokenizer.from_str(text)
    loaded.no_truncation()
    loaded.no_padding()
    size = max(loaded.get_vocab_size(), max(loaded.get_added_tokens_decoder(), default=-1) + 1)
    loaded.to_str()
    for sample in _TEXTS:
        for special in (False, True):
            try:
                loaded.encode(sample, add_special_tokens=special)
            except Exception:  # noqa: S112  # a text that it cannot write is a request's error; a panic is not caught
                continue
    ids = list(range(0, size, max(1, size // _MANY)))
    loaded.decode(ids, skip_special_tokens=False)
    for one in ids:
        loaded.decode([one], skip_special_tokens=False)


def _why(error: BaseException) -> str:
    return (str(error)[:_MAX_WHY].splitlines() or [""])[0] or type(error).__name__


if __name__ == "__main__":
    sys.exit(serve(handle))
