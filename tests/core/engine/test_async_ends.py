"""How an ``AsyncLLM`` starts and ends: twice, given up half-way, forgotten; and what waits for it meanwhile."""

from __future__ import annotations

import asyncio
import gc
import threading
import time

import pytest

from enginebay import AsyncLLM, SamplingParams
from enginebay.engine.front import async_llm, async_stream
from enginebay.engine.loop import EngineLoop
from enginebay.errors import EngineDead, WorkerFailed
from support.fake_engine import FakeRunner
from support.fake_engines import Installed
from support.llms import threads

LONG = SamplingParams(max_tokens=400)


async def no_threads() -> None:
    until = time.monotonic() + 10
    while threads():
        assert time.monotonic() < until, threads()
        await asyncio.sleep(0.005)


def slow_loading(monkeypatch: pytest.MonkeyPatch, seconds: float) -> threading.Event:
    """Loading takes so long; the event is set when it has begun."""
    begun = threading.Event()

    def load_model(self: FakeRunner) -> None:
        begun.set()
        time.sleep(seconds)

    monkeypatch.setattr(FakeRunner, "load_model", load_model)
    return begun


def test_one_that_is_forgotten_is_closed(fake: Installed) -> None:  # X13
    async def main() -> None:
        llm = AsyncLLM(fake.config())
        await llm.start()
        assert [output.text async for output in llm.generate("say:a")]
        del llm
        await no_threads()

    gc.disable()  # the last reference is enough
    try:
        asyncio.run(main())
    finally:
        gc.enable()


def test_a_stream_keeps_its_engine(fake: Installed) -> None:
    async def main() -> None:
        llm = AsyncLLM(fake.config())
        await llm.start()
        stream = llm.generate("say:hello")
        del llm
        gc.collect()
        assert "".join([output.text async for output in stream]) == "hello"
        del stream
        await no_threads()

    asyncio.run(main())


def test_a_second_start_leaves_the_first_as_it_is(fake: Installed) -> None:
    async def main() -> None:
        llm = AsyncLLM(fake.config())
        await asyncio.gather(llm.start(), llm.start())
        running = threads()
        assert running.count("enginebay-engine") == 1
        async with llm:
            assert threads() == running
        assert not threads()
        await llm.close()
        async with llm:  # and again
            assert threads().count("enginebay-engine") == 1
        assert not threads()

    asyncio.run(main())


@pytest.mark.parametrize("cancellations", [1, 2, 3])
def test_a_start_that_is_given_up_leaves_nothing(
    fake: Installed, monkeypatch: pytest.MonkeyPatch, cancellations: int
) -> None:
    async def main() -> None:
        llm = AsyncLLM(fake.config())
        task = asyncio.create_task(llm.start())
        await asyncio.to_thread(begun.wait)
        for _ in range(cancellations):
            task.cancel()
            await asyncio.sleep(0.02)
        with pytest.raises(asyncio.CancelledError):
            await task
        assert bool(threads()) == (cancellations > 1)  # the first cancellation waits, the second does not
        await no_threads()
        with pytest.raises(EngineDead, match="the engine is not running"):
            llm.generate("a")

    begun = slow_loading(monkeypatch, 0.4)
    asyncio.run(main())
    assert not threads()


def test_a_start_that_is_cancelled_as_it_ends_leaves_nothing(fake: Installed) -> None:
    async def main(delay: float) -> None:
        llm = AsyncLLM(fake.config())
        task = asyncio.create_task(llm.start())
        await asyncio.sleep(0)
        if delay:
            time.sleep(delay)  # noqa: ASYNC251  # the loop is busy while the start ends
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not threads()

    for delay in (0.0, 0.05, 1.0):
        asyncio.run(main(delay))


def test_a_failed_start_that_was_given_up_is_quiet(
    fake: Installed, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        task = asyncio.create_task(AsyncLLM(fake.config(fail="warm_up")).start())
        await asyncio.to_thread(begun.wait)
        task.cancel()
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await no_threads()
        with pytest.raises(WorkerFailed):
            await AsyncLLM(fake.config(fail="warm_up")).start()

    begun = slow_loading(monkeypatch, 0.2)
    asyncio.run(main())
    gc.collect()
    assert "never retrieved" not in caplog.text


def test_a_close_that_is_cancelled_is_done_all_the_same(fake: Installed) -> None:
    async def main() -> None:
        llm = AsyncLLM(fake.config(step_seconds=0.05))
        await llm.start()
        await anext(llm.generate("a", LONG))
        task = asyncio.create_task(llm.close())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await no_threads()

    asyncio.run(main())


def test_stats_of_a_long_step_hold_nobody_up(fake: Installed) -> None:
    async def main() -> None:
        async with AsyncLLM(fake.config(step_seconds=0.6), sets=["deadlines.stop=0.2"]) as llm:
            stream = llm.generate("a", SamplingParams(max_tokens=1))
            reading = asyncio.create_task(anext(stream))
            await asyncio.sleep(0.1)
            asked = [asyncio.create_task(llm.stats()) for _ in range(100)]
            await asyncio.sleep(0)
            await asyncio.wait_for(asyncio.to_thread(threads), 0.3)  # no thread of the pool waits for the step
            assert {stats.steps for stats in await asyncio.gather(*asked)} == {1}
            await reading

    asyncio.run(main())


def test_nobody_waits_for_a_thread_that_ended_without_a_word(fake: Installed, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with AsyncLLM(fake.config(step_seconds=1.0)) as llm:
            reading = asyncio.create_task(anext(llm.generate("a")))
            await asyncio.sleep(0.2)
            asked = asyncio.create_task(llm.stats())
            await asyncio.sleep(0)
            with monkeypatch.context() as patch:
                patch.setattr(EngineLoop, "is_alive", lambda self: False)
                for task in (reading, asked):
                    with pytest.raises(EngineDead, match=r"^the engine stopped: its thread has ended$"):
                        await asyncio.wait_for(task, 0.5)

    for module in (async_llm, async_stream):
        monkeypatch.setattr(module, "LOOK_SECONDS", 0.05)
    asyncio.run(main())
