"""What is asked of a whole engine beside requests: to drain, to say how it is, to profile, to stop. E7."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from enginebay import LLM, AsyncLLM, SamplingParams
from enginebay.errors import EngineAsleep, EngineBusy, EngineDead, InvalidRequest, WorkerFailed
from enginebay.messages import ControlDone, ReadStatus, Sleep, StopEngine
from support.fake_engines import Installed
from support.llms import FEW, Held, answer, client_of, until_status


@pytest.mark.parametrize(
    "ask",
    [
        lambda llm: llm.drain("soon"),
        lambda llm: llm.sleep(2**70),
        lambda llm: llm.sleep("deep"),
        lambda llm: llm.wake_up([7]),
        lambda llm: llm.collective_rpc("\ud800"),
        lambda llm: llm.collective_rpc("a.b", timeout="long"),
        lambda llm: llm.update_weights("/tmp/\udcff"),
        lambda llm: llm.update_weights("/tmp", version=7),
        lambda llm: llm.start_profile("/tmp/\udcff"),
    ],
)
def test_what_cannot_be_said_is_refused_and_harms_nobody(llm: LLM, ask: Callable[[LLM], object]) -> None:
    with pytest.raises(InvalidRequest, match="cannot be asked so: "):
        ask(llm)
    assert answer(llm) == "the quick"


def test_a_drain_lets_the_running_end(fake: Installed) -> None:  # E7
    with LLM(fake.config(step_seconds=0.002)) as llm:
        stream = llm.stream("hi", SamplingParams(max_tokens=60))
        next(stream)
        left: list[int] = []
        drain = threading.Thread(target=lambda: left.append(llm.drain()))
        drain.start()
        until_status(llm, state="draining")
        with pytest.raises(EngineBusy, match=r"^the engine drains, and takes no new requests: ask again when"):
            answer(llm)
        assert sum(len(output.token_ids) for output in stream) == 60 - 1
        drain.join(20)
        assert left == [0]
        llm.resume()
        assert answer(llm) == "the quick"


def test_a_drain_ends_at_its_time(fake: Installed) -> None:
    with LLM(fake.config(step_seconds=0.002)) as llm, Held(llm):
        assert llm.drain(timeout=0.05) == 1
        assert llm.drain(timeout=0) == 1
        llm.resume()


def test_a_status_waits_for_nobody(fake: Installed) -> None:
    with LLM(fake.config(step_seconds=0.3)) as llm:
        answering = threading.Thread(target=lambda: llm.generate("hi", SamplingParams(max_tokens=2)))
        answering.start()
        until_status(llm, unfinished="1")
        assert client_of(llm).control(ReadStatus()).done()
        answering.join(20)
        assert llm.status()["finished"] == "1"


def test_stop_as_a_command(fake: Installed) -> None:
    with LLM(fake.config()) as llm:
        assert client_of(llm).control(StopEngine()).result(20) == ControlDone()
        client_of(llm)._loop.join(20)
        with pytest.raises(EngineDead, match=r"^the engine is closed; make a new one$"):
            answer(llm)


def test_what_waits_at_the_end_is_told(fake: Installed) -> None:
    with LLM(fake.config(step_seconds=0.002)) as llm, Held(llm):
        drain = client_of(llm)._core.parts.drain_timeout
        assert drain > 1
        errors: list[Exception] = []

        def ask() -> None:
            try:
                llm.drain()
            except EngineDead as error:
                errors.append(error)

        asking = threading.Thread(target=ask)
        asking.start()
        until_status(llm, state="draining")
        llm.close()
        asking.join(20)
        assert [str(error) for error in errors] == ["the engine is closed; make a new one"]


def test_a_command_whose_asker_has_gone(llm: LLM) -> None:
    """One that was cancelled before its turn is passed over; one that runs is not taken back."""
    client = client_of(llm)
    many = [client.control(Sleep()) for _ in range(3)]
    for one in many[1:]:
        one.cancel()
    many[0].result(20)
    llm.wake_up()
    assert answer(llm) == "the quick"


def test_the_same_awaited(fake: Installed, loud: Path, tmp_path: Path) -> None:  # E7
    async def main() -> None:
        async with AsyncLLM(fake.config()) as llm:

            async def text() -> str:
                return "".join([output.text async for output in llm.generate("hi", FEW)])

            assert await text() == "the quick"
            await llm.sleep(2)
            with pytest.raises(EngineAsleep):
                await text()
            await llm.wake_up()
            await llm.update_weights(loud)
            assert await text() == "THE QUICK"
            await llm.update_weights(tensors=[("weight", np.zeros(4, np.float32))], version="z")
            assert await text() == "the quick"
            assert (await llm.status())["weights"] == "z"
            assert await llm.drain() == 0
            with pytest.raises(EngineBusy):
                await text()
            await llm.resume()
            await llm.start_profile(tmp_path / "profiles")
            assert await text() == "the quick"
            assert await llm.stop_profile() == [tmp_path / "profiles" / "rank0.pstats"]

    asyncio.run(main())


def test_a_profile_is_written(llm: LLM, tmp_path: Path) -> None:
    with pytest.raises(WorkerFailed, match="no profile is being recorded: start one first"):
        llm.stop_profile()
    llm.start_profile(tmp_path / "profiles")
    with pytest.raises(WorkerFailed, match="a profile is being recorded already: stop it first"):
        llm.start_profile(tmp_path / "profiles")
    answer(llm)
    [path] = llm.stop_profile()
    assert b"execute_model" in path.read_bytes()
    llm.start_profile(tmp_path / "profiles")  # and is dropped with the engine
