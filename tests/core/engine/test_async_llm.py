"""``AsyncLLM``: many tasks, cancellation, slow readers, death."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from enginebay import AsyncLLM, SamplingParams
from enginebay.engine import EngineStats
from enginebay.errors import DuplicateRequest, EngineDead, InvalidRequest, WorkerFailed
from enginebay.messages import FinishReason, RequestOutput
from support.fake_engine import DEFAULT
from support.fake_engines import Installed

LONG = SamplingParams(max_tokens=400)


def run(fake: Installed, body: Callable[[AsyncLLM], Awaitable[None]], **options: Any) -> None:
    """Run ``body`` with a started engine, and check that its threads end with it."""

    async def main() -> None:
        async with AsyncLLM(fake.config(**options)) as llm:
            await asyncio.wait_for(body(llm), 60)

    before = threading.active_count()
    asyncio.run(main())
    assert threading.active_count() == before


async def text_of(llm: AsyncLLM, prompt: str, params: SamplingParams | None = None) -> str:
    return "".join([output.text async for output in llm.generate(prompt, params)])


async def until(llm: AsyncLLM, holds: Callable[[EngineStats], bool]) -> None:
    while not holds(await llm.stats()):  # noqa: ASYNC110  # the engine has no event for what a test wants to see
        await asyncio.sleep(0.005)


async def settled(llm: AsyncLLM) -> None:
    await until(llm, lambda stats: not stats.unfinished)


def test_many_tasks_at_once(fake: Installed) -> None:
    async def body(llm: AsyncLLM) -> None:
        texts = await asyncio.gather(*(text_of(llm, f"say:answer {index}") for index in range(30)))
        assert texts == [f"answer {index}" for index in range(30)]

    run(fake, body)


def test_chat_and_what_is_in_force(fake: Installed) -> None:
    async def body(llm: AsyncLLM) -> None:
        stream = llm.chat([{"role": "user", "content": "say:hi"}])
        assert "".join([output.text async for output in stream]) == "hi"
        assert llm.in_force["runner"] == "fake"

    run(fake, body)


def test_a_cancelled_task_aborts_its_request(fake: Installed) -> None:  # E6
    async def body(llm: AsyncLLM) -> None:
        task = asyncio.create_task(text_of(llm, "a", LONG))
        await until(llm, lambda stats: stats.committed_tokens > 0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await settled(llm)
        asked = (await llm.stats()).steps
        await until(llm, lambda stats: stats.scheduler.num_free_blocks == stats.scheduler.num_blocks)
        assert (await llm.stats()).steps <= asked + 1
        assert await text_of(llm, "say:on we go") == "on we go"

    run(fake, body, step_seconds=0.01)


def test_leaving_the_loop_early_aborts(fake: Installed) -> None:  # E6
    async def body(llm: AsyncLLM) -> None:
        async for _ in llm.generate("a", LONG):
            break
        await settled(llm)
        stream = llm.generate("b", LONG)
        await anext(stream)
        await stream.aclose()
        assert [output async for output in stream] == []
        await settled(llm)

    run(fake, body, step_seconds=0.01)


def test_abort_by_id(fake: Installed) -> None:  # E1
    async def body(llm: AsyncLLM) -> None:
        stream = llm.generate("a", LONG, request_id="mine")
        await anext(stream)
        with pytest.raises(DuplicateRequest, match="request id 'mine' is in use"):
            await anext(llm.generate("b", LONG, request_id="mine"))
        await llm.abort("mine")
        outputs = [output async for output in stream]
        assert outputs[-1].finish_reason is FinishReason.ABORT

    run(fake, body, step_seconds=0.01)


def test_a_slow_reader_has_at_most_one_delta_waiting(fake: Installed) -> None:
    async def body(llm: AsyncLLM) -> None:
        stream = llm.generate("a", SamplingParams(max_tokens=90))
        outputs: list[RequestOutput] = [await anext(stream)]
        await settled(llm)
        outputs += [output async for output in stream]
        assert len(outputs) == 2
        assert "".join(output.text for output in outputs) == (DEFAULT * 2)[:90]
        assert outputs[1].offset == len(outputs[0].token_ids)

    run(fake, body)


def test_a_bad_request_is_its_tasks_own(fake: Installed) -> None:  # E4
    async def body(llm: AsyncLLM) -> None:
        good, bad = await asyncio.gather(text_of(llm, "say:good"), text_of(llm, ""), return_exceptions=True)
        assert good == "good"
        assert isinstance(bad, InvalidRequest)
        outputs = [output async for output in llm.generate("fault")]
        assert [(o.finish_reason, o.error) for o in outputs] == [(FinishReason.ERROR, "logits are NaN")]
        late = [output async for output in llm.generate("a", LONG, timeout=0.05)]
        assert late[-1].error == "deadline"

    run(fake, body, step_seconds=0.01)


def test_death_wakes_all_with_an_error_each(fake: Installed) -> None:  # E2, E8
    async def body(llm: AsyncLLM) -> None:
        tasks = [asyncio.create_task(text_of(llm, "a", LONG)) for _ in range(6)]
        await until(llm, lambda stats: stats.unfinished == 6)
        tasks.append(asyncio.create_task(text_of(llm, "crash")))
        errors = await asyncio.gather(*tasks, return_exceptions=True)
        errors += await asyncio.gather(text_of(llm, "late"), return_exceptions=True)
        assert {type(error) for error in errors} == {EngineDead}
        assert len(set(map(id, errors))) == 8
        assert len({str(error) for error in errors}) == 1

    run(fake, body, step_seconds=0.01)


def test_what_is_not_started_says_so(fake: Installed) -> None:
    llm = AsyncLLM(fake.config())
    with pytest.raises(EngineDead, match=r"the engine is not running: use 'async with AsyncLLM\(…\)', or await start"):
        llm.generate("a")


def test_a_start_that_fails_leaves_nothing(fake: Installed) -> None:
    async def main() -> None:
        async with AsyncLLM(fake.config(fail="warm_up")):
            raise AssertionError("it must not start")

    before = threading.active_count()
    with pytest.raises(WorkerFailed):
        asyncio.run(main())
    assert threading.active_count() == before


def test_a_start_that_is_cancelled_is_undone(fake: Installed) -> None:
    async def main() -> None:
        llm = AsyncLLM(fake.config())
        task = asyncio.create_task(llm.start())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    before = threading.active_count()
    asyncio.run(main())
    assert threading.active_count() == before
