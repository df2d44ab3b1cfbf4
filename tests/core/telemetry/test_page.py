"""The page: whole without a network, and nothing from a span is markup or script in it."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from html.parser import HTMLParser
from importlib import resources
from typing import Any

import pytest
from hypothesis import given

from enginebay.telemetry import SpanEvent, SpanLink, SpanRecord, forest, page
from enginebay.telemetry._page import BEGIN, page_data
from support.records import MS, span, traces

FILES = resources.files("enginebay.telemetry") / "_page_files"
EVIL = "</script ></script><script>alert(1)</script><!--\u2028 &lt; @@DATA@@"


class Read(HTMLParser):
    """A page as a browser takes it apart."""

    def __init__(self, content: bytes) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self._within = ""
        self.feed(content.decode())
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._within = tag
        self.texts.setdefault(tag, []).append("")

    def handle_endtag(self, tag: str) -> None:
        self._within = ""

    def handle_data(self, data: str) -> None:
        if self._within:
            self.texts[self._within][-1] += data


def made(**more: Any) -> list[SpanRecord]:
    return [
        span(1, EVIL, 1000, 1010, attributes={EVIL: EVIL, "nan": math.nan, "big": 1 << 60}, message=EVIL, **more),
        span(2, "child", 1002, 1004, 1, events=(SpanEvent(name=EVIL, time_ns=1003 * MS, attributes={"k": 1}),)),
    ]


def test_nothing_of_a_span_is_markup() -> None:
    clean, evil = Read(page(forest([span(1, "a", 0, 1)]), title="t")), Read(page(forest(made()), title=EVIL))
    shape = [(tag, sorted(about)) for tag, about in clean.tags]
    assert [(tag, sorted(about)) for tag, about in evil.tags] == shape
    assert not set("<>&") & set(evil.texts["script"][0]), "a browser need not even know where the element ends"
    data = json.loads(evil.texts["script"][0])
    assert data["names"] == [EVIL, "child"]
    assert data["title"] == EVIL
    assert data["details"][0] == {
        "id": f"{1:016x}",
        "own": 8000.0,
        "m": EVIL,
        "a": {EVIL: EVIL, "nan": "nan", "big": str(1 << 60)},
        "e": [],
        "l": [],
    }
    assert data["details"][1]["e"] == [[EVIL, 3000.0, {"k": 1}]]


def test_only_its_own_script_and_style_are_let_run() -> None:
    content = page(forest(made()), title="t")
    assert content.startswith(BEGIN)
    read = Read(content)
    (policy,) = [about["content"] for tag, about in read.tags if about.get("http-equiv") == "Content-Security-Policy"]
    assert policy is not None
    (style,), (_, script) = read.texts["style"], read.texts["script"]

    def digest(text: str) -> str:
        return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()

    assert policy == f"default-src 'none'; style-src '{digest(style)}'; script-src '{digest(script)}'"


@pytest.mark.parametrize("name", sorted(file.name for file in FILES.iterdir()))
def test_it_asks_no_network(name: str) -> None:
    text = (FILES / name).read_text("utf-8")
    assert re.findall(r"https?:|src=|href=|@import|url\(|fetch\(|XMLHttp|WebSocket|import\(", text) == []
    assert re.findall(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|new Function", text) == []


def test_every_element_that_the_script_asks_for_is_there() -> None:
    there = {about["id"] for _, about in Read(page([], title="t")).tags if "id" in about}
    asked = {
        name
        for file in FILES.iterdir()
        if file.name.endswith(".js")
        for name in re.findall(r'\$\("(\w+)"\)', file.read_text("utf-8"))
    }
    assert asked <= there


@given(traces())
def test_the_data_of_any_trace(spans: list[SpanRecord]) -> None:
    data = page_data(forest(spans), "t")
    assert len(data["spans"]) == len(data["details"]) == len(spans)
    starts = [one[4] for one in data["spans"]]
    assert starts == sorted(starts)
    by_id = {s.span_id: s for s in spans}
    for number, (process, lane, depth, name, start, took, parent, kind, trace, status) in enumerate(data["spans"]):
        one = by_id[data["details"][number]["id"]]
        assert data["names"][name] == one.name
        assert start == one.start_ns / 1e3
        assert took == (one.end_ns - one.start_ns) / 1e3
        assert data["traces"][trace] == one.trace_id
        assert data["kinds"][kind] == "root"
        assert status == 0
        assert parent == -1 if not one.parent_id else data["details"][parent]["id"] == one.parent_id
        _, rows = data["processes"][process]["lanes"][lane]
        assert depth < rows
    ((kind, chain),) = data["slowest"]
    assert kind == "root"
    assert data["details"][chain[0]]["id"] == spans[0].span_id


def test_links_lead_to_spans_that_are_there() -> None:
    links = tuple(SpanLink(trace_id=f"{t:032x}", span_id=f"{2:016x}", attributes={"n": t}) for t in (1, 9))
    data = page_data(forest(made(links=links)), "t")
    assert data["details"][0]["l"] == [
        [1, f"{1:032x}", f"{2:016x}", {"n": 1}],
        [-1, f"{9:032x}", f"{2:016x}", {"n": 9}],
    ]


def test_it_says_when_it_began() -> None:
    assert page_data(forest([span(1, "a", 1_796_085_370_686.5, 1_796_085_370_690)]), "t")["begin"] == (
        "2026-12-01 00:36:10.686 UTC"
    )
    assert page_data([], "t")["spans"] == []
