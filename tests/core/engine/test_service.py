"""The engine's side of its front ends: each sees its own requests alone; slow, gone and hostile ones harm nobody."""

from __future__ import annotations

import os
import random
import socket as sockets
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from enginebay import LLM, SamplingParams
from enginebay.errors import EngineBusy, EngineDead, InvalidRequest, UnknownRequest
from enginebay.messages import (
    AbortRequest,
    Answer,
    AskControl,
    AskStats,
    Delta,
    Drain,
    Ended,
    Failed,
    FinishReason,
    Goodbye,
    Hello,
    Ping,
    Pong,
    ReadStatus,
    Refusal,
    Stats,
    StopEngine,
    Submit,
    Taken,
)
from support.fake_engines import Installed
from support.served import RawFront, Serving, eventually, request, serve


@pytest.fixture
def slow(fake: Installed) -> Iterator[Serving]:
    """One whose steps take a while."""
    with serve(fake.config(step_seconds=0.02)) as serving:
        yield serving


def read(front: RawFront, request_id: str = "a", *, acknowledge: bool = True) -> tuple[str, list[int]]:
    """A request's answer as a front end sees it: every frame, in order."""
    text, number, ids = "", 0, []
    while True:
        message = front.hear(Delta, Failed)
        assert isinstance(message, Delta), message
        if message.output.request_id != request_id:
            continue
        assert message.number == number + 1
        assert message.output.offset == len(ids)
        number += 1
        text += message.output.text
        ids += message.output.token_ids
        if acknowledge:
            front.say(Taken(request_id=request_id, number=number))
        if message.output.finish_reason is not None:
            return text, ids


def state(serving: Serving) -> str:
    done = serving.front.runtime.wait(serving.front.client.control(ReadStatus()), None)
    return done.facts["state"]


def test_two_front_ends_with_the_same_ids_see_their_own_answers(slow: Serving) -> None:
    with RawFront(slow.address) as one, RawFront(slow.address) as two:
        assert one.hello().session != two.hello().session
        one.say(Submit(requests=(request("a", "say:one first"),)))
        two.say(Submit(requests=(request("a", "say:two second"),)))
        assert read(one)[0] == "one first"
        assert read(two)[0] == "two second"


def test_a_front_end_cannot_abort_anothers_request(slow: Serving) -> None:
    with RawFront(slow.address) as one, RawFront(slow.address) as two:
        one.hello()
        two.hello()
        one.say(Submit(requests=(request("a", "say:mine"),)))
        for name in ("a", "1/a", "2/a", "/a"):
            two.say(AbortRequest(request_id=name), Taken(request_id=name, number=99))
        assert read(one)[0] == "mine"


def test_many_front_ends_at_once(serving: Serving) -> None:
    answers: dict[int, list[str]] = {}

    def use(number: int) -> None:
        with LLM.connect(serving.address) as llm:
            prompts = [f"say:{number} {i}" for i in range(10)]
            answers[number] = [answer.text for answer in llm.generate(prompts)]

    threads = [threading.Thread(target=use, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert answers == {number: [f"{number} {i}" for i in range(10)] for number in range(6)}
    eventually(lambda: serving.service.num_front_ends == 0)


def test_a_request_that_is_refused_fails_alone(serving: Serving) -> None:  # E4
    with RawFront(serving.address) as front:
        front.hello()
        front.say(Submit(requests=(request("a", "say:good"), request("b", ""), request("c", "x", temperature=-1.0))))
        failures = [front.hear(Failed), front.hear(Failed)]
        assert {(one.request_id, one.kind) for one in failures} == {("b", "InvalidRequest"), ("c", "InvalidRequest")}
        assert failures[0].message == "the prompt is empty; it must have at least one token"
    with LLM.connect(serving.address) as llm:
        with pytest.raises(InvalidRequest, match="temperature must be a finite number"):
            llm.generate("x", SamplingParams(temperature=-1.0))
        with pytest.raises(UnknownRequest):
            llm.abort("never")
        assert llm.generate("say:still here")[0].text == "still here"


def test_an_id_in_use_is_refused_to_its_own_front_end_alone(slow: Serving) -> None:  # E1
    with RawFront(slow.address) as front:
        front.hello()
        front.say(Submit(requests=(request("a", "say:abcdefgh"),)), Submit(requests=(request("a", "x"),)))
        failed = front.hear(Failed)
        assert (failed.number, failed.kind) == (0, "DuplicateRequest")
        assert failed.message.startswith("request id 'a' is in use by an unfinished request")


def test_a_request_is_ended_by_its_own_front_end(slow: Serving) -> None:
    with LLM.connect(slow.address) as llm:
        stream = llm.stream("go on", SamplingParams(max_tokens=400), request_id="a")
        next(stream)
        llm.abort("a")
        assert stream.completion().choices[0].finish_reason is FinishReason.ABORT
        with llm.stream("go on", SamplingParams(max_tokens=400)) as left:
            next(left)
        eventually(lambda: slow.num_unfinished == 0)


def test_a_front_end_that_goes_away_frees_its_blocks(slow: Serving) -> None:  # E6
    with RawFront(slow.address) as front:
        front.hello()
        front.say(Submit(requests=(request("a", "go on", max_tokens=400), request("b", "go on", max_tokens=400))))
        front.hear(Delta)
        assert slow.front.client.stats().scheduler.num_free_blocks < 256
    eventually(lambda: slow.num_unfinished == 0)
    eventually(lambda: slow.front.client.stats().scheduler.num_free_blocks == 256)  # a step may be in flight
    assert slow.service.num_front_ends == 0


def test_a_front_end_that_says_goodbye_frees_its_blocks(slow: Serving) -> None:  # E6
    with RawFront(slow.address) as front:
        front.hello()
        front.say(Submit(requests=(request("a", "go on", max_tokens=400),)))
        front.hear(Delta)
        front.say(Goodbye())
        eventually(lambda: slow.num_unfinished == 0 and slow.service.num_front_ends == 0)
        front.say(Submit(requests=(request("b", "say:x"),)))
        eventually(lambda: slow.service.num_damaged == 1)


def test_a_front_end_that_reads_nothing_is_sent_away(fake: Installed) -> None:  # E6
    with serve(fake.config(), stall=0.5) as serving, RawFront(serving.address) as front:
        front.hello()
        front.say(Submit(requests=(request("a", "say:x"),)))
        ended = front.hear(Ended)
        assert ended.kind == "EngineDead"
        assert ended.message == "the front end has taken nothing of what was sent for 0.5 s: its requests were aborted"
        eventually(lambda: serving.service.num_front_ends == 0)


def test_a_slow_reader_gets_all_of_it_and_holds_up_nobody(serving: Serving) -> None:  # R10
    with RawFront(serving.address) as slow, RawFront(serving.address) as quick:
        slow.hello()
        quick.hello()
        slow.say(Submit(requests=(request("a", "x", max_tokens=400, logprobs=20),)))
        for turn in range(5):
            quick.say(Submit(requests=(request(f"q{turn}", "say:quick"),)))
            assert read(quick, f"q{turn}")[0] == "quick"
        eventually(lambda: serving.num_unfinished == 0)
        _, ids = read(slow)
        assert len(ids) == 400


def test_status_statistics_and_the_end_are_asked_by_the_socket_for_control(serving: Serving) -> None:
    with RawFront(f"{serving.address}.ctl") as front:
        front.say(AskControl(number=1, command=ReadStatus()), AskStats(number=2), Ping())
        answers = {type(one): one for one in (front.hear(Answer, Stats, Pong) for _ in range(3))}
        assert answers[Answer].done.facts["state"] == "ready"
        assert answers[Stats].number == 2
        front.say(Submit(requests=(request("a", "x"),)), Hello())
        eventually(lambda: serving.service.num_damaged == 2)
        front.say(AskControl(number=3, command=StopEngine()))
        assert front.hear(Answer).number == 3
        eventually(lambda: serving.stops == [None])


def test_control_is_not_taken_by_the_socket_for_requests(serving: Serving) -> None:
    with RawFront(serving.address) as front:
        front.hello()
        front.say(AskControl(number=1, command=StopEngine()), AskStats(number=2), Ping())
        assert front.hear(Answer, Stats, Refusal, Pong) == Pong()
        assert serving.stops == []


def test_a_drain_refuses_new_requests_and_lets_the_others_end(slow: Serving) -> None:  # E5
    with LLM.connect(slow.address) as llm, LLM.connect(slow.address) as other:
        stream = llm.stream("say:to the very end")
        next(stream)
        draining = slow.front.client.control(Drain(timeout=60))
        eventually(
            lambda: slow.front.runtime.wait(slow.front.client.control(ReadStatus()), None).facts["state"] != "ready"
        )
        with pytest.raises(EngineBusy, match="drain"):
            other.generate("say:too late")
        assert stream.completion().text == "to the very end"
        assert slow.front.runtime.wait(draining, None).facts == {"unfinished": "0"}


def test_the_sockets_are_this_users_alone(serving: Serving) -> None:
    path = Path(serving.address.removeprefix("ipc://"))
    assert sorted(one.name for one in path.parent.iterdir()) == ["address", "front", "front.ctl", "lock", "manifest"]
    for one in (path, path.with_name("front.ctl")):
        assert stat.S_IMODE(one.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_hostile_messages_harm_nobody(serving: Serving) -> None:
    generator = random.Random(7)
    good = msgspec.msgpack.encode(Submit(requests=(request("a", "say:x"),)))
    bombs = [b"\xdd\xff\xff\xff\xff", b"\x81\xa4type\xa6submit", b"\x91" * 100_000, b"", b"\xc1"]
    mutants = [bytes(b ^ (generator.random() < 0.05) * generator.randrange(256) for b in good) for _ in range(300)]
    with RawFront(serving.address) as hostile, RawFront(serving.address) as front:
        front.hello()
        for body in [*bombs, *mutants]:
            hostile.socket.send(body)
        hostile.hello()
        for body in [*bombs, *mutants]:
            hostile.socket.send(body)
        hostile.socket.send_multipart([b"x"] * 500)
        hostile.socket.send_multipart([b"", b""])
        front.say(Submit(requests=(request("a", "say:unharmed"),)))
        assert read(front)[0] == "unharmed"
        eventually(lambda: serving.door.num_dropped == 2)


def test_strangers_to_zeromq_harm_nobody(serving: Serving) -> None:
    path = serving.address.removeprefix("ipc://")
    for body in (b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 1000, os.urandom(4000), b""):
        with sockets.socket(sockets.AF_UNIX) as raw:
            raw.connect(path)
            try:
                raw.sendall(body)
            except OSError:
                continue  # it was cut off already
    with LLM.connect(serving.address) as llm:
        assert llm.generate("say:unharmed")[0].text == "unharmed"


def test_a_message_over_the_limit_ends_its_own_connection(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    with RawFront(serving.address) as hostile, RawFront(serving.address) as front:
        front.hello()
        hostile.hello()
        eventually(lambda: serving.service.num_front_ends == 2)
        hostile.socket.send(bytes(64 * 1024 * 1024 + 1))
        eventually(lambda: serving.service.num_front_ends == 1)
        front.say(Submit(requests=(request("a", "say:unharmed"),)))
        assert read(front)[0] == "unharmed"


def test_another_release_is_told_so(serving: Serving) -> None:
    with RawFront(serving.address) as front:
        front.say(Hello(protocol=99))
        assert front.hear(Ended).message == "the engine speaks front end protocol 1, not 99: use the same release"


def test_too_many_front_ends_are_refused(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("enginebay.engine.service.service._MAX_SESSIONS", 1)
    with RawFront(serving.address) as one, RawFront(serving.address) as two:
        one.hello()
        two.say(Hello())
        assert two.hear(Ended).kind == "EngineBusy"


def test_a_session_is_not_to_be_guessed(serving: Serving) -> None:
    with RawFront(serving.address) as front, RawFront(serving.address) as thief:
        front.hello()
        thief.say(Hello(session="0" * 32))
        assert thief.hear(Ended).message == "the connection was lost for too long: the requests were aborted"


def test_when_the_service_ends_each_front_end_is_told_once(slow: Serving) -> None:  # E2
    with RawFront(slow.address) as front:
        front.hello()
        front.say(Submit(requests=(request("a", "go on", max_tokens=400),)))
        front.hear(Delta)
        slow.service.close(EngineDead("the engine stopped: worker 0 was killed"))
        assert front.hear(Ended) == Ended(kind="EngineDead", message="the engine stopped: worker 0 was killed")
        with pytest.raises(AssertionError):
            front.hear(Ended, seconds=0.2)


@pytest.mark.parametrize(
    "command",
    [{"type": "of another release"}, {"type": "drain", "timeout": "soon"}, None, {"type": "wake_up", "tags": 7}, []],
)
def test_a_command_that_cannot_be_read_is_answered(serving: Serving, command: object) -> None:
    asked = {"type": "ask_control", "number": 7, "command": command}
    with RawFront(f"{serving.address}.ctl") as front:
        front.socket.send(msgspec.msgpack.encode(asked))
        refusal = front.hear(Refusal)
        assert (refusal.number, refusal.kind) == (7, "InvalidRequest")
        assert refusal.message == "the engine cannot read what it was asked: use the same release at both ends"
        front.socket.send(msgspec.msgpack.encode({"type": "ask_of another release", "number": 8}))
        assert front.hear(Refusal).number == 8
        for unreadable in (b"\xc1", msgspec.msgpack.encode({"type": "ask_control", "number": "7"}), b"\x91" * 10_000):
            front.socket.send(unreadable)
        front.say(AskControl(number=9, command=ReadStatus()))
        assert front.hear(Answer, Refusal).number == 9
        assert serving.service.num_damaged == 5


def test_of_requests_only_a_question_that_cannot_be_read_is_answered(serving: Serving) -> None:
    with RawFront(serving.address) as front:
        front.hello()
        for kind, number in (("taken", 5), ("submit", 6), ("check_request", 7)):
            front.socket.send(msgspec.msgpack.encode({"type": kind, "number": number, "request": 1, "requests": 1}))
        assert front.hear(Refusal).number == 7


def test_a_message_without_an_end_by_a_unix_socket_harms_nobodys_requests(serving: Serving) -> None:
    """Nobody can see its parts before the last has come; see docs/security.md."""
    ready = b"\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER"
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(48)
    part = b"\x03" + (1 << 20).to_bytes(8) + bytes(1 << 20)  # a long frame, and more to come
    with sockets.socket(sockets.AF_UNIX) as raw, LLM.connect(serving.address) as llm:
        raw.settimeout(30)
        raw.connect(serving.address.removeprefix("ipc://"))
        raw.sendall(greeting + b"\x04" + bytes([len(ready)]) + ready)
        for number in range(20):
            raw.sendall(part)
            assert llm.generate(f"say:{number}")[0].text == str(number)
        assert serving.service.num_front_ends == 1
        assert serving.door.num_dropped == serving.service.num_damaged == 0
        raw.close()
        assert llm.generate("say:after it")[0].text == "after it"
