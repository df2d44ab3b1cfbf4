"""The child that compiles and renders chat templates, in jinja2's sandbox with what published templates expect."""

from __future__ import annotations

import codecs
import functools
import json
import pprint  # noqa: F401  # jinja2 loads these when they are first used, and then nothing can be opened any more
import sys
import textwrap  # noqa: F401  # see above
import unicodedata  # noqa: F401  # see above
from datetime import datetime
from typing import Any, NoReturn

import jinja2
import jinja2.constants
import jinja2.debug
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from enginebay.limited._serve import serve

_KEPT = 8  # compiled templates
_MAX_WHY = 1000

for _name in ("ascii", "latin-1", "unicode-escape", "utf-8"):
    codecs.lookup(_name)


def handle(request: dict[str, Any]) -> dict[str, Any]:
    """``source`` alone: its words and texts; with ``messages``: the text; or why not: broken, refused, failed."""
    try:
        compiled = _compile(request["source"])
    except MemoryError:
        raise
    except Exception as error:  # the compiler fails in any way: nested too deeply, a break outside a loop, ...
        return {"broken": _why(error)}
    if "messages" not in request:
        return {"words": compiled.words, "texts": compiled.texts}
    compiled.now = datetime.fromisoformat(request["now"])
    try:
        text = compiled.template.render(
            messages=request["messages"],
            tools=None,
            documents=None,
            add_generation_prompt=request["add_generation_prompt"],
            **request["tokens"],
        )
    except MemoryError:
        raise
    except _Refused as error:
        return {"refused": _why(error)}
    except Exception as error:  # a template is a program: it can fail in any way
        return {"failed": _why(error)}
    if len(text) > request["most"]:
        return {"failed": f"it wrote {len(text)} characters, and at most {request['most']} are taken"}
    return {"text": text}


class _Compiled:
    """A template, the strings that it writes, compares with and looks for, and the text around its statements."""

    def __init__(self, source: str) -> None:
        self.now = datetime.min
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation]
        )
        environment.filters["tojson"] = _to_json
        environment.globals |= {"raise_exception": _raise, "strftime_now": lambda form: self.now.strftime(form)}
        tree = environment.parse(source)
        words = [node.value for node in tree.find_all(jinja2.nodes.Const) if isinstance(node.value, str)]
        self.words = list(dict.fromkeys(words))
        self.texts = [node.data for node in tree.find_all(jinja2.nodes.TemplateData)]
        self.template = environment.from_string(source)


_compile = functools.lru_cache(maxsize=_KEPT)(_Compiled)


class _Refused(jinja2.TemplateError):
    """The template called ``raise_exception``."""


class _Generation(jinja2.ext.Extension):
    """``{% generation %}`` marks the assistant's words for training; here its body is rendered as it stands."""

    tags = {"generation"}  # noqa: RUF012  # jinja2 declares it as a plain set

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise(message: str) -> NoReturn:
    raise _Refused(message)


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As published templates expect it: nothing escaped for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _why(error: Exception) -> str:
    return " ".join(str(error)[: 2 * _MAX_WHY].split())[:_MAX_WHY] or type(error).__name__


if __name__ == "__main__":
    sys.exit(serve(handle))
