"""Whose a stream's request is, whoever else wants its id; and that a stream has one reader. E1, E6."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from enginebay import LLM, AsyncLLM, SamplingParams
from enginebay.engine import Completion
from enginebay.engine.client import InProcessClient
from enginebay.engine.collector import Collector
from enginebay.engine.front.front import Front, Request
from enginebay.errors import DuplicateRequest, InvalidRequest
from enginebay.messages import FinishReason, RequestOutput
from support.fake_engines import Installed

FEW = SamplingParams(max_tokens=2)
LONG = SamplingParams(max_tokens=60)
ENDLESS = SamplingParams(max_tokens=400)


@pytest.fixture
def llm(fake: Installed) -> Iterator[LLM]:
    with LLM(fake.config(step_seconds=0.005)) as llm:
        yield llm


def idle(llm: LLM) -> None:
    until = time.monotonic() + 10
    while llm.stats().unfinished:
        assert time.monotonic() < until
        time.sleep(0.005)


def test_a_duplicate_that_is_refused_leaves_the_holder_of_its_id_alone(llm: LLM) -> None:
    holder = llm.stream("a", LONG, request_id="x")
    next(holder)
    for _ in range(3):
        with pytest.raises(DuplicateRequest, match="request id 'x' is in use"):
            llm.stream("b", LONG, request_id="x")
        gc.collect()
    answer = holder.completion()
    assert (answer.finish_reason, len(answer.token_ids)) == (FinishReason.LENGTH, 60)


@pytest.mark.parametrize("end", ["close", "drop"])
def test_the_end_of_an_unread_stream_leaves_the_next_of_its_id_alone(llm: LLM, end: str) -> None:
    old = llm.stream("a", FEW, request_id="x")
    idle(llm)
    new = llm.stream("b", LONG, request_id="x")
    next(new)
    if end == "close":
        old.close()
    del old
    gc.collect()
    answer = new.completion()
    assert (answer.finish_reason, len(answer.token_ids)) == (FinishReason.LENGTH, 60)


def test_a_batch_takes_no_ids_and_says_so_before_any_prompt_runs(llm: LLM) -> None:
    calls: list[Callable[..., object]] = [
        lambda **options: llm.generate("a", FEW, **options),
        lambda **options: llm.generate(["a", "b"], FEW, errors="return", **options),
        lambda **options: llm.chat([{"role": "user", "content": "a"}], FEW, **options),
    ]
    for call in calls:
        for request_id in ("x", ["x", "y"]):
            with pytest.raises(InvalidRequest) as caught:
                call(request_id=request_id)
            assert (caught.value.param, str(caught.value)) == (
                "request_id",
                "request_id is for streams alone; an answer of generate or chat has its own, drawn for it",
            )
    assert llm.stats().steps == 0


def test_a_second_thread_that_reads_is_refused(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = llm.stream("a", LONG, request_id="x")
    reads, go_on = threading.Event(), threading.Event()
    wait = Collector.wait

    def held(self: Collector, client: InProcessClient) -> list[RequestOutput]:
        reads.set()
        assert go_on.wait(20)
        return wait(self, client)

    monkeypatch.setattr(Collector, "wait", held)
    ended: list[Completion] = []
    reading = threading.Thread(target=lambda: ended.append(stream.completion()))
    reading.start()
    assert reads.wait(20)
    with pytest.raises(RuntimeError) as caught:
        next(stream)
    assert str(caught.value) == "the stream of request 'x' is being read already: it has one reader"
    go_on.set()
    reading.join(20)
    assert [len(answer.token_ids) for answer in ended] == [60]  # the refusal ended nothing


def test_a_stream_that_another_thread_closes_ends_its_reader(llm: LLM) -> None:
    stream = llm.stream("a", ENDLESS)
    seen: list[FinishReason | None] = []
    reading = threading.Thread(target=lambda: seen.extend(output.finish_reason for output in stream))
    reading.start()
    time.sleep(0.05)
    stream.close()
    reading.join(10)
    assert not reading.is_alive()
    assert set(seen) <= {None}
    assert list(stream) == []
    idle(llm)


def run(fake: Installed, body: Callable[[AsyncLLM], Awaitable[None]]) -> None:
    async def main() -> None:
        async with AsyncLLM(fake.config(step_seconds=0.005)) as llm:
            await asyncio.wait_for(body(llm), 60)

    asyncio.run(main())


async def settled(llm: AsyncLLM) -> None:
    while (await llm.stats()).unfinished:  # noqa: ASYNC110  # the engine has no event for what a test wants to see
        await asyncio.sleep(0.005)


def test_async_duplicates_and_unread_ends_leave_the_others_alone(fake: Installed) -> None:
    async def body(llm: AsyncLLM) -> None:
        old = llm.generate("a", SamplingParams(max_tokens=8), request_id="x")
        await anext(old)
        await settled(llm)
        holder = llm.generate("b", LONG, request_id="x")
        outputs = [await anext(holder)]
        with pytest.raises(DuplicateRequest, match="request id 'x' is in use"):
            await anext(llm.generate("c", LONG, request_id="x"))
        await old.aclose()
        gc.collect()
        outputs += [output async for output in holder]
        assert outputs[-1].finish_reason is FinishReason.LENGTH
        assert sum(len(output.token_ids) for output in outputs) == 60

    run(fake, body)


def test_a_second_task_that_reads_is_refused(fake: Installed, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    request = Front.request

    def counted(self: Front, *arguments: Any, **options: Any) -> Request:
        made.append("one")
        return request(self, *arguments, **options)

    async def body(llm: AsyncLLM) -> None:
        stream = llm.generate("a", LONG)
        first, second = await asyncio.gather(anext(stream), anext(stream), return_exceptions=True)
        assert str(second) == "the stream is being read by another task already: it has one reader"
        assert isinstance(second, RuntimeError)
        assert not isinstance(first, BaseException)
        rest = [output async for output in stream]  # the refusal ended nothing
        assert len(first.token_ids) + sum(len(output.token_ids) for output in rest) == 60
        assert made == ["one"]

    monkeypatch.setattr(Front, "request", counted)
    run(fake, body)


def test_a_stream_that_is_closed_before_it_was_sent_is_not_sent(fake: Installed) -> None:
    async def body(llm: AsyncLLM) -> None:
        stream = llm.generate("a", ENDLESS)
        reading = asyncio.ensure_future(anext(stream, None))
        await asyncio.sleep(0)
        await stream.aclose()
        assert await reading is None
        assert (await llm.stats()).steps == 0

    run(fake, body)


def test_a_closed_stream_yields_nothing_more(fake: Installed) -> None:
    async def body(llm: AsyncLLM) -> None:
        stream = llm.generate("a", ENDLESS)
        await anext(stream)
        reading = asyncio.ensure_future(anext(stream, None))
        await asyncio.sleep(0)
        await stream.aclose()
        assert await reading is None
        assert [output async for output in stream] == []
        await settled(llm)

    run(fake, body)
