"""Templates, tokenizers and texts over their limits: one line each, and the next one works."""

from __future__ import annotations

import base64
import json
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import tokenizers

from enginebay.errors import InvalidRequest, ModelError, RequestFailed
from enginebay.limited import Helper
from enginebay.limited._child import Child
from enginebay.text import ChatTemplate, Tokenizer, _template, encode_chat
from enginebay.text._chat import MAX_MESSAGES
from enginebay.text._template import MAX_RENDERED_CHARS, MAX_TEMPLATE_CHARS
from enginebay.text._tokenizer import MAX_TEXT_BYTES
from enginebay.text._tokenizer_check import check_tokenizer
from support.tiny_tokenizers import KINDS, byte_level

HI = [{"role": "user", "content": "hi"}]
SPIN = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
TINY: dict[str, Any] = json.loads(KINDS["byte-level"]()._plain.to_str())


@pytest.fixture
def seconds() -> float:
    """For one call: enough on a busy machine, so that only the test of it runs into it."""
    return 60.0


@pytest.fixture
def helper(monkeypatch: pytest.MonkeyPatch, seconds: float) -> Iterator[Helper]:
    """A process of this test's own: one that is replaced must not be another test's."""
    own = Helper("enginebay.limited._templates", memory=64 << 20, seconds=seconds, max_reply=6 * MAX_RENDERED_CHARS)
    monkeypatch.setattr(_template, "_shared", weakref.WeakValueDictionary({"helper": own}))
    yield own
    own.close()


@pytest.mark.parametrize(
    ("seconds", "source", "why"),
    [
        (0.5, SPIN, "it took longer than 0.5 s and was stopped"),
        (60.0, "{% set x = messages[0].content * 90000000 %}", "it needs more than the 64 MiB that it may take"),
        (60.0, "{{ messages[0].content * 9000000 }}", "it wrote 18000000 characters, and at most 16777216 are taken"),
    ],
)
def test_a_template_over_a_limit(helper: Helper, source: str, why: str) -> None:
    template = ChatTemplate(source, "here")
    with pytest.raises(InvalidRequest) as caught:
        template.render(HI)
    assert str(caught.value) == f"the chat template in here failed on these messages: {why}"
    assert caught.value.param == "messages"
    assert ChatTemplate("{{ messages[0].content }}", "here").render(HI) == "hi"


def test_messages_over_the_memory(helper: Helper) -> None:
    template = ChatTemplate("{{ messages[0].content }}", "here")
    with pytest.raises(InvalidRequest) as caught:
        template.render([{"role": "user", "content": "a" * 200_000_000}])
    assert str(caught.value) == (
        "the chat template in here failed on these messages: it needs more than the 64 MiB that it may take"
    )


@pytest.mark.parametrize("times", [1, 2])
def test_a_process_that_something_else_kills(helper: Helper, monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """It is tried once more, and never told as a fault of the messages."""
    template = ChatTemplate("{{ messages[0].content }}", "here")
    real, left = Child.send, [None] * times

    def send(child: Child, frame: bytes, deadline: float) -> None:
        if left:
            left.pop()
            child.popen.kill()
            child.popen.wait()
        real(child, frame, deadline)

    monkeypatch.setattr(Child, "send", send)
    if times == 1:
        assert template.render(HI) == "hi"
        return
    with pytest.raises(RequestFailed) as caught:
        template.render(HI)
    assert str(caught.value) == (
        "the process that runs the chat template in here was killed by SIGKILL (out of memory?); send the request again"
    )
    assert caught.value.param is None
    assert template.render(HI) == "hi"


def test_a_process_that_cannot_be_started(helper: Helper, monkeypatch: pytest.MonkeyPatch) -> None:
    template = ChatTemplate("x", "here")
    helper.close()
    monkeypatch.setattr("sys.executable", "/no/such/python")
    with pytest.raises(RequestFailed) as caught:
        template.render(HI)
    assert str(caught.value) == (
        "the process that runs the chat template in here could not be started: No such file or directory; "
        "send the request again"
    )


def test_a_template_whose_constants_explode_when_it_is_compiled(helper: Helper) -> None:
    with pytest.raises(ModelError) as caught:
        ChatTemplate("{{ 'a' * 20000000 }}", "here")
    assert str(caught.value) == (
        "the chat template in here cannot be used: compiling it needs more than the 64 MiB that it may take"
    )


def test_a_template_that_is_too_long() -> None:
    with pytest.raises(ModelError) as caught:
        ChatTemplate("x" * (MAX_TEMPLATE_CHARS + 1), "here")
    assert str(caught.value) == "the chat template in here has 1048577 characters; at most 1048576"


def test_what_a_template_says_is_one_line() -> None:
    template = ChatTemplate("{{ raise_exception('a\n\x1b[31m\u202e' * 999) }}", "here")
    with pytest.raises(InvalidRequest) as caught:
        template.render(HI)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) <= 1000


def test_the_process_ends_with_the_last_template(helper: Helper, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_template, "_shared", weakref.WeakValueDictionary())
    one, other = ChatTemplate("1", "here"), ChatTemplate("2", "here")
    assert one._helper is other._helper is not None
    pid = other._helper.pid
    assert pid is not None
    one.close()
    assert other.render(HI) == "2"
    other.close()
    assert not psutil.pid_exists(pid)
    assert one.render(HI) == "1"
    one.close()


@pytest.mark.parametrize(
    ("messages", "error"),
    [
        (HI * (MAX_MESSAGES + 1), "there are 16385 messages; at most 16384 are taken"),
        (
            [{"role": "user", "content": "a" * MAX_TEXT_BYTES}],
            "the messages have 12582927 characters; at most 12 MiB are tokenized",
        ),
        ([{"role": "user", "content": "", "a\n": 1}], "messages[0]: 'a?' is not text"),
    ],
)
def test_conversations_over_a_limit(messages: Any, error: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        encode_chat(byte_level(), ChatTemplate("x", "here"), messages)
    assert str(caught.value) == error


@pytest.mark.parametrize("text", ["a" * (MAX_TEXT_BYTES + 1), "é" * (MAX_TEXT_BYTES // 2 + 1)])
def test_a_text_over_its_limit(text: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        byte_level().encode(text)
    assert str(caught.value) == f"the text has {len(text)} characters; at most 12 MiB are tokenized"


def _charsmap(longest: int) -> str:
    trie = bytes(16)
    return base64.b64encode(len(trie).to_bytes(4, "little") + trie + b"a\0" + b"b" * longest + b"\0").decode()


REPLACE = {"type": "Replace", "pattern": {"String": "a"}, "content": "b" * 9}
HOSTILE: dict[str, tuple[dict[str, Any], str]] = {
    "growth": (
        {"normalizer": {"type": "Sequence", "normalizers": [REPLACE, REPLACE]}},
        "its normalizer can make a text more than 64 times as long",
    ),
    "prepend": (
        {"normalizer": {"type": "Prepend", "prepend": "x" * 65}},
        "its normalizer can make a text more than 64 times as long",
    ),
    "charsmap": (
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": _charsmap(1000)}},
        "its normalizer can make a text more than 64 times as long",
    ),
    "decoder": (
        {"decoder": {"type": "Sequence", "decoders": [REPLACE] * 3}},
        "its decoder can make a text more than 64 times as long",
    ),
    "parts": (
        {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "ByteLevel"}] * 256}},
        "it has 258 parts; at most 256",
    ),
    "abort": (  # the library asks for 4 GiB, does not get them, and aborts
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "/////w=="}},
        "a trial of it was killed by SIGABRT (out of memory?)",
    ),
    "panic": (
        {"pre_tokenizer": {"type": "FixedLength", "length": 0}},
        "chunk size must be non-zero",
    ),
    "backtracking": (
        {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}},
        "Onig: Regex search error: retry-limit-in-match over",
    ),
    "decoding": (
        {"decoder": {"type": "Strip", "content": "a", "start": 2**63, "stop": 2**63}},
        "index out of bounds: the len is 1 but the index is 18446744073709551615",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_tokenizers(tmp_path: Path, name: str, capfd: pytest.CaptureFixture[str]) -> None:
    changes, why = HOSTILE[name]
    (tmp_path / "tokenizer.json").write_text(json.dumps({**TINY, **changes}))
    with pytest.raises(ModelError) as caught:
        Tokenizer.from_folder(tmp_path)
    assert str(caught.value) == f"{tmp_path / 'tokenizer.json'} cannot be used: {why}"
    assert capfd.readouterr().err == ""  # the library's own words on a panic stay in the trial


def test_nested_parts() -> None:
    tree: dict[str, Any] = {"type": "NFC"}
    for _ in range(40):
        tree = {"type": "Sequence", "normalizers": [tree]}
    with pytest.raises(ModelError, match=r"^x cannot be used: its parts are nested more than 32 deep$"):
        check_tokenizer(json.dumps({**TINY, "normalizer": tree}), "x")


def test_too_many_added_tokens() -> None:
    with pytest.raises(ModelError, match=r"^x cannot be used: it has 262145 added tokens; at most 262144$"):
        check_tokenizer(json.dumps({**TINY, "added_tokens": [{}] * (2**18 + 1)}), "x")


@pytest.mark.parametrize("kind", KINDS)
def test_ordinary_tokenizers_pass(kind: str) -> None:
    check_tokenizer(KINDS[kind]()._plain.to_str(), "x")


def test_a_tokenizer_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    text = json.dumps({**TINY, "added_tokens": [], "version": "1.0"}, indent=7)
    check_tokenizer(text, "x")
    monkeypatch.setattr("enginebay.text._tokenizer_check.Helper", None)
    check_tokenizer(text, "x")


def test_panics_at_any_call_are_errors_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    class PanicException(BaseException):
        """What pyo3 raises."""

    def panic(*_: object, **__: object) -> Any:
        raise PanicException("index\x1b out of bounds\nmore")

    monkeypatch.setattr(tokenizers.Tokenizer, "from_str", panic)
    with pytest.raises(ModelError) as caught:
        Tokenizer("{}", "x\n")
    assert str(caught.value) == "x? cannot be used: index? out of bounds"
    monkeypatch.undo()
    tokenizer = byte_level()

    class Panics:
        def __getattr__(self, name: str) -> Any:
            return panic

    monkeypatch.setattr(tokenizer, "_decoder", Panics())
    monkeypatch.setattr(tokenizer, "_plain", Panics())
    for call in (
        lambda: tokenizer.encode("x"),
        lambda: tokenizer.decode([1]),
        lambda: tokenizer.encode_with_affixes("x"),
    ):
        with pytest.raises(InvalidRequest, match=r"index\? out of bounds$"):
            call()
    with pytest.raises(ModelError, match=r"index\? out of bounds$"):
        tokenizer.encode("x", special=True)
