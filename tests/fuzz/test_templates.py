"""Chat templates: compiled and rendered by the limited process, which is killed now and then and comes back."""

from __future__ import annotations

import json
import random
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from enginebay.errors import InvalidRequest, ModelError
from enginebay.limited import Helper
from enginebay.text import ChatTemplate, _template
from support.fuzzing import SHORT, SOAK, TEXTS, Tally, fuzz, mutate_bytes, mutate_json
from support.tiny_gguf import TEMPLATE

SECONDS = 0.25
KILLERS = (
    "{{ 'a' * 300000000 }}",
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "{{ 9 ** (9 ** 9) }}",
    "{{ ('a' * 4000000) | replace('a', 'b' * 4000) }}",
    "{{ ([0] * 99999999) | tojson }}",
    "{{ '%0999999999d' | format(1) }}",
)
ONE_IN = 4000  # each costs its deadline, or a process
BASES = (
    TEMPLATE,
    (
        "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}<|User|>{{ m.content }}"
        "{% else %}{{ '<|Assistant|>' + m.content + eos_token }}{% endif %}{% endfor %}"
    ),
    (
        "{% set ns = namespace(n=0) %}{% for m in messages if m.role != 'tool' %}{% set ns.n = ns.n + 1 %}"
        "{{ m.content | trim | replace('a', 'b') }}{{ m | tojson(indent=2) }}{% endfor %}{{ ns.n }}"
    ),
    (
        "{% macro say(m) -%}[{{ m.role | upper }}]{{ m.content.split('</think>')[-1] }}{%- endmacro %}"
        "{% for m in messages %}{{ say(m) }}{% if loop.last and add_generation_prompt %}>{% endif %}{% endfor %}"
    ),
    (
        "{% if messages[0].role == 'system' %}{{ raise_exception('no system: ' + messages[0].content) }}{% endif %}"
        "{% generation %}{{ strftime_now('%d %b') }}{{ tools is none }}{% endgeneration %}"
    ),
)
PIECES = (
    *("{% for m in messages %}", "{% endfor %}", "{% if 1 %}", "{% else %}", "{% endif %}", "{% break %}", "{{", "}}"),
    *("{{ ''.__class__.__mro__ }}", "{{ cycler.__init__.__globals__ }}", "{{ lipsum(5) }}", "{{ self }}", "{#", "#}"),
    *("{{ messages.append(1) }}", "{{ 1 // 0 }}", "{{ nothing.at_all }}", "{% include 'x' %}", "{% extends x %}"),
    *(
        "{{ 'x' * 5000 }}",
        "{{ 2 ** 5000 }}",
        "{{ range(10) | list | pprint }}",
        "{{ '\\N{BULLET}\\ud800' }}",
        "{{ [[" * 30,
    ),
    *("{% set x = x %}", "{% filter upper %}", "{% call(x) f() %}", "{% raw %}", "|safe", "|attr('__x__')", "('", "%}"),
    *("{{ '%s%n%*d' | format(1) }}", "{{ raise_exception('a\n\x1b[31m' * 400) }}", "{{ {}|map('x')|list }}", "\0"),
    *(
        "{{ caller() }}",
        "{{ joiner }}",
        "{{ dict(a=1).items() | list }}",
        "{{ messages | map(attribute='role') | join }}",
    ),
)
DEPTHS = {
    "file": "JSON|has no chat template|cannot read",
    "broken": "is broken",
    "stopped": "took longer|needs more|was killed|and at most",
    "refused by it": "refuses the messages",
    "failed": "failed on these messages",
}


@pytest.fixture
def helper(monkeypatch: pytest.MonkeyPatch) -> Iterator[Helper]:
    """A process of this test's own, with a deadline that killers can be afforded with."""
    own = Helper("enginebay.limited._templates", memory=64 << 20, seconds=SECONDS, max_reply=8 << 20)
    monkeypatch.setattr(_template, "_shared", weakref.WeakValueDictionary({"helper": own}))
    yield own
    own.close()


def _source(chance: random.Random) -> str:
    if chance.randrange(ONE_IN) == 0:
        return chance.choice(KILLERS)
    source = chance.choice(BASES)
    for _ in range(chance.choice((0, 0, 1, 1, 1, 2, 4))):
        at = chance.randrange(len(source) + 1)
        act = chance.randrange(4)
        if act == 0:
            source = source[:at] + source[at + chance.choice((1, 2, 8, 40)) :]
        elif act == 1:
            source = source[:at] + source[at : at + chance.choice((4, 20))] * 3 + source[at:]
        else:
            source = source[:at] + chance.choice(PIECES if act == 2 else TEXTS) + source[at:]
    return source


def _read(chance: random.Random, folder: Path) -> ChatTemplate:
    """From a damaged tokenizer_config.json."""
    token = {"content": "</s>", "lstrip": False}
    tree: Any = {"bos_token": "<s>", "eos_token": token, "chat_template": _source(chance)}
    if chance.random() < 0.3:
        tree["chat_template"] = [{"name": "default", "template": tree["chat_template"]}, {"name": "tool_use"}]
    raw = json.dumps(mutate_json(chance, tree)).encode()
    (folder / "tokenizer_config.json").write_bytes(mutate_bytes(chance, raw) if chance.random() < 0.2 else raw)
    return ChatTemplate.from_folder(folder)


def _case(chance: random.Random, folder: Path) -> str | None:
    tokens = {"bos_token": "<s>", "eos_token": chance.choice(TEXTS)}
    template = _read(chance, folder) if chance.random() < 0.2 else ChatTemplate(_source(chance), "here", tokens)
    roles = ("user", "assistant", "system")
    messages = [{"role": chance.choice(roles), "content": chance.choice(TEXTS)} for _ in range(chance.randrange(1, 4))]
    text = template.render(messages, add_generation_prompt=chance.random() < 0.5)
    assert len(text) <= _template.MAX_RENDERED_CHARS
    return "rendered"


def _run(folder: Path, count: int, seed: int) -> Tally:
    return fuzz(
        "templates",
        lambda chance: _case(chance, folder),
        count=count,
        seed=seed,
        errors=(ModelError, InvalidRequest),
        depths=DEPTHS,
    )


def _check(tally: Tally) -> None:
    for label, least in (
        ("rendered", 0.2),
        ("file", 0.01),
        ("broken", 0.1),
        ("failed", 0.02),
        ("refused by it", 0.005),
    ):
        assert tally.share(label) >= least, label


def test_templates(helper: Helper, tmp_path: Path) -> None:
    _check(_run(tmp_path, SHORT, 1))


@pytest.mark.parametrize("source", KILLERS)
def test_killers(helper: Helper, source: str) -> None:
    with pytest.raises((ModelError, InvalidRequest), match=DEPTHS["stopped"]):
        ChatTemplate(source, "here").render([{"role": "user", "content": "hi"}])
    assert ChatTemplate("{{ messages[0].content }}", "here").render([{"role": "user", "content": "hi"}]) == "hi"


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_many_templates(helper: Helper, tmp_path: Path) -> None:
    tally = _run(tmp_path, SOAK, 2)
    _check(tally)
    assert tally.depths["stopped"] > 5
