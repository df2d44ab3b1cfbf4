"""A front end of an engine in another process: the same face, connections that break, ends that are told once."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket as sockets
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from enginebay import LLM, AsyncLLM, SamplingParams
from enginebay.engine.control.tensors import StartTensors
from enginebay.engine.front.connect import connect, running_engines
from enginebay.engine.remote.remote import RemoteClient
from enginebay.errors import (
    ConfigError,
    DuplicateRequest,
    EngineAsleep,
    EngineDead,
    InvalidRequest,
    ModelError,
    RequestError,
    RequestTooLong,
    WorkerHung,
)
from enginebay.messages import CallWorkers, Control, Drain, FinishReason, ReadStatus, UpdateWeights
from enginebay.runfolder import RunFolder
from enginebay.transport.front_address import FrontAddress, write_address
from enginebay.transport.front_keys import ServerKeys, client_file
from support.fake_engines import Installed
from support.forks import in_a_fork
from support.served import Serving, eventually, serve


@pytest.fixture
def keys(tmp_path: Path) -> ServerKeys:
    return ServerKeys.read_or_make(tmp_path / "keys")


class Proxy:
    """A network between a front end and an engine, whose cables can be pulled."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._listener = sockets.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._pairs: list[tuple[sockets.socket, sockets.socket]] = []
        self._threads: list[threading.Thread] = []
        self._is_open = True
        self._accepting = threading.Thread(target=self._accept)
        self._accepting.start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            if not self._is_open:
                near.close()
                continue
            far = sockets.create_connection(("127.0.0.1", self._port))
            self._pairs.append((near, far))
            for source, sink in ((near, far), (far, near)):
                thread = threading.Thread(target=self._copy, args=(source, sink))
                self._threads.append(thread)
                thread.start()

    def _copy(self, source: sockets.socket, sink: sockets.socket) -> None:
        try:
            while data := source.recv(4096):
                sink.sendall(data)
        except OSError:
            pass
        for one in (source, sink):
            try:
                one.shutdown(sockets.SHUT_RDWR)
            except OSError:
                continue

    def pull(self, *, for_good: bool = False) -> None:
        self._is_open = not for_good
        for pair in self._pairs:
            for one in pair:
                try:
                    one.shutdown(sockets.SHUT_RDWR)
                except OSError:
                    continue

    def close(self) -> None:
        self._listener.shutdown(sockets.SHUT_RDWR)
        self._listener.close()
        self.pull(for_good=True)
        self._accepting.join()
        for thread in self._threads:
            thread.join()
        for pair in self._pairs:
            for one in pair:
                one.close()


def test_the_same_face_as_an_engine_of_its_own(fake: Installed, serving: Serving) -> None:
    prompts = ["say:one", "two", [104, 105]]
    params = SamplingParams(max_tokens=12, n=2, temperature=1.0, seed=3, logprobs=2)
    with LLM(fake.config()) as own, LLM.connect(serving.address) as remote:
        assert remote.in_force == own.in_force
        assert remote.has_chat_template == own.has_chat_template
        mine, theirs = own.generate(prompts, params), remote.generate(prompts, params)
        assert [answer.choices for answer in theirs] == [answer.choices for answer in mine]
        messages = [{"role": "user", "content": "say:hello"}]
        assert remote.chat(messages)[0].text == own.chat(messages)[0].text
        assert "".join(one.text for one in remote.stream("say:in parts")) == "in parts"
        assert remote.decode([104, 105]) == "hi"
        assert remote.stats().unfinished == 0
        with pytest.raises(RequestTooLong) as theirs_refusal:
            remote.generate("x" * 600)
        with pytest.raises(RequestTooLong) as own_refusal:
            own.generate("x" * 600)
        assert str(theirs_refusal.value) == str(own_refusal.value)
    assert serving.front.client.stats().finished


def test_refused_prompts_stand_in_their_places(serving: Serving) -> None:
    with LLM.connect(serving.address) as llm:
        answers = llm.generate(["say:one", "", "say:three"], errors="return")
        assert [answer.text for answer in answers] == ["one", "", "three"]
        assert answers[1].error == "the prompt is empty; it must have at least one token"


def test_what_a_plugin_takes_is_asked_of_the_engine(serving: Serving) -> None:
    with LLM.connect(serving.address) as llm:
        assert list(llm.stream("say:x", extra={"fake": b'{"mood": "merry"}'}))
        with pytest.raises(InvalidRequest, match="'level'"):
            llm.stream("say:x", extra={"fake": b'{"level": 10}'})


def test_an_id_in_use_is_refused_where_it_is_given(fake: Installed) -> None:  # E1
    with serve(fake.config(step_seconds=0.02)) as serving, LLM.connect(serving.address) as llm:
        with llm.stream("go on", SamplingParams(max_tokens=400), request_id="a") as stream:
            next(stream)
            with pytest.raises(DuplicateRequest, match="request id 'a' is in use by an unfinished request"):
                llm.stream("x", request_id="a")
        eventually(lambda: serving.num_unfinished == 0)
        eventually(lambda: "a" not in llm._front.client._requests._live)  # type: ignore[attr-defined]  # remote
        assert llm.stream("say:again", request_id="a").completion().text == "again"


def test_from_an_event_loop(serving: Serving) -> None:
    async def use() -> str:
        async with AsyncLLM.connect(serving.address) as llm:
            answers = await asyncio.gather(*(whole(llm, f"say:{number}") for number in range(8)))
            assert answers == [str(number) for number in range(8)]
            assert (await llm.stats()).unfinished == 0
            stream = llm.generate("go on", SamplingParams(max_tokens=400), request_id="a")
            first = await anext(stream)
            await stream.aclose()
            return first.text

    async def whole(llm: AsyncLLM, prompt: str) -> str:
        return "".join([output.text async for output in llm.generate(prompt)])

    assert asyncio.run(use())
    eventually(lambda: serving.service.num_front_ends == 0 and serving.num_unfinished == 0)


def test_control_goes_the_same_way(serving: Serving) -> None:
    with LLM.connect(serving.address) as llm:
        llm.sleep()
        with pytest.raises(EngineAsleep):
            llm.generate("say:x")
        llm.wake_up()
        with pytest.raises(InvalidRequest, match="tensors do not cross to an engine in another process"):
            llm.update_weights(tensors=[])
        with pytest.raises(InvalidRequest, match="save them to a folder that its workers can read"):
            llm._front.client.control(StartTensors(update=1))
        with pytest.raises(InvalidRequest, match="no worker extension"):
            llm.collective_rpc("some.thing")
        assert llm.status()["state"] == "ready"


def test_close_leaves_the_engine_running(serving: Serving) -> None:
    for _ in range(3):
        llm = LLM.connect(serving.address)
        assert llm.generate("say:x")[0].text == "x"
        llm.close()
        llm.close()
        with pytest.raises(EngineDead, match="the engine is closed"):
            llm.generate("say:x")
    forgotten = LLM.connect(serving.address)
    del forgotten
    eventually(lambda: serving.service.num_front_ends == 0)


def test_a_forked_child_has_no_connection(serving: Serving) -> None:
    with LLM.connect(serving.address) as llm:

        def child() -> None:
            with pytest.raises(EngineDead, match="was forked from it"):
                llm.generate("say:x")

        assert in_a_fork(child) == 0
        assert llm.generate("say:here")[0].text == "here"


def test_the_only_engine_is_found_and_several_are_listed(serving: Serving, fake: Installed) -> None:
    assert running_engines() == [serving.address]
    with LLM.connect() as llm:
        assert llm.generate("say:found")[0].text == "found"
    with serve(fake.config()) as second, pytest.raises(ConfigError) as refusal:
        LLM.connect()
    both = ", ".join(sorted([serving.address, second.address]))
    assert str(refusal.value) == f"2 engines of this user run here; say which: {both}"


def test_no_engine(tmp_path: Path) -> None:
    with pytest.raises(EngineDead, match=r"no engine of this user runs here .* start one with 'enginebay up'"):
        LLM.connect()
    folder = RunFolder.make()
    with pytest.raises(EngineDead, match=rf"no engine listens at ipc://{folder.path}/front \(No such file"):
        LLM.connect(f"ipc://{folder.path}/front")
    with sockets.socket(sockets.AF_UNIX) as left:
        left.bind(str(folder.path / "front"))
    write_address(folder.path, FrontAddress(path=folder.path / "front"))
    with pytest.raises(EngineDead, match="Connection refused"):
        LLM.connect()
    folder.close()


def test_what_listens_and_is_no_engine(tmp_path: Path) -> None:
    folder = RunFolder.make()
    with sockets.socket(sockets.AF_UNIX) as mute:
        mute.bind(str(folder.path / "front"))
        mute.listen()
        write_address(folder.path, FrontAddress(path=folder.path / "front"))
        with pytest.raises(EngineDead, match=r"has not answered for 0.3 s: the engine is starting, stopped, or none"):
            connect(timeout=0.3)
    folder.close()


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("somewhere", "'somewhere' is no address of an engine: write ipc:///folder/name or tcp://HOST:PORT"),
        ("tcp://127.0.0.1", "the address 'tcp://127.0.0.1' has no port from 0 to 65535"),
        ("tcp://engine.example:5", "the address 'tcp://engine.example:5' has no IP address"),
        ("tcp://127.0.0.1:70000", "has no port from 0 to 65535"),
        ("tcp://127.0.0.1:5", "tcp://127.0.0.1:5 wants keys: give the client's part of the engine's key file"),
        ("ipc://" + "x" * 200, "and Linux allows 107"),
    ],
)
def test_bad_addresses(address: str, said: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        LLM.connect(address)
    assert said in str(refusal.value)


def test_a_tokenizer_that_cannot_be_read_here(fake: Installed, tmp_path: Path) -> None:
    with serve(fake.config()) as serving:
        shutil.move(fake.model, tmp_path / "elsewhere")
        with pytest.raises(ModelError, match=r"cannot be read here: .* Give tokenizer=PATH"):
            LLM.connect(serving.address)
        with LLM.connect(serving.address, tokenizer=tmp_path / "elsewhere") as llm:
            assert llm.generate("say:read")[0].text == "read"


def test_over_tcp_with_keys(fake: Installed, tmp_path: Path, keys: ServerKeys) -> None:
    file = client_file(tmp_path / "keys")
    with serve(fake.config(), tcp=keys) as serving, LLM.connect(serving.address, keys=file) as llm:
        assert llm.generate("say:secret")[0].text == "secret"
        assert llm.stats().finished == 1
        assert llm.status()["state"] == "ready"


def test_a_stranger_with_keys_of_its_own_is_not_let_in(fake: Installed, tmp_path: Path, keys: ServerKeys) -> None:
    ServerKeys.read_or_make(tmp_path / "other")
    with serve(fake.config(), tcp=keys) as serving:
        mine = client_file(tmp_path / "keys").read_text()
        theirs = client_file(tmp_path / "other").read_text()
        pinned = mine.split('"server_public": "')[1][:40]
        stranger = tmp_path / "stranger"
        stranger.touch(mode=0o600)
        stranger.write_text(theirs.replace(theirs.split('"server_public": "')[1][:40], pinned))
        with pytest.raises(ConfigError, match="the engine does not let this key in; is the key file the right one"):
            LLM.connect(serving.address, keys=stranger)
        with pytest.raises((ConfigError, EngineDead)):  # another engine's public key: it is not who it should be
            connect(serving.address, keys=client_file(tmp_path / "other"), timeout=1.0)
        assert serving.service.num_front_ends == 0


def test_a_key_does_what_its_roles_say(fake: Installed, tmp_path: Path, keys: ServerKeys) -> None:
    file = tmp_path / "keys"
    file.write_text(file.read_text().replace('"control"', '"observe"'))
    roles = ServerKeys.read_or_make(file)
    with serve(fake.config(), tcp=roles) as serving, LLM.connect(serving.address, keys=client_file(file)) as llm:
        assert llm.stats().unfinished == 0
        assert llm.status()["state"] == "ready"
        with pytest.raises(InvalidRequest, match="that wants the role control, and this key has: submit, observe"):
            llm.drain()
    file.write_text(file.read_text().replace('"submit"', '"observe"'))
    refused = pytest.raises(ConfigError, match="this key has not the role submit")
    with serve(fake.config(), tcp=ServerKeys.read_or_make(file)) as serving, refused:
        LLM.connect(serving.address, keys=client_file(file))


def test_a_connection_that_breaks_is_taken_up_without_a_gap(fake: Installed, tmp_path: Path, keys: ServerKeys) -> None:
    # R10
    with serve(fake.config(step_seconds=0.01), tcp=keys) as serving:
        proxy = Proxy(serving.door.address.port)
        try:
            with LLM.connect(f"tcp://127.0.0.1:{proxy.port}", keys=client_file(tmp_path / "keys")) as llm:
                stream = llm.stream("go on", SamplingParams(max_tokens=300))
                for turn, _ in enumerate(stream):
                    if turn in (3, 40, 80):
                        proxy.pull()
                answer = stream.completion()
                assert len(answer.choices[0].token_ids) == 300
                assert answer.text == serving.front.decode(answer.choices[0].token_ids)
                assert serving.service.num_front_ends == 1
        finally:
            proxy.close()


def test_a_connection_that_stays_broken_ends_both_sides(
    fake: Installed, tmp_path: Path, keys: ServerKeys, monkeypatch: pytest.MonkeyPatch
) -> None:  # E6
    monkeypatch.setattr("enginebay.engine.remote.link._RESUME_SECONDS", 0.5)
    with serve(fake.config(step_seconds=0.01), tcp=keys, resume=0.5) as serving:
        proxy = Proxy(serving.door.address.port)
        try:
            llm = LLM.connect(f"tcp://127.0.0.1:{proxy.port}", keys=client_file(tmp_path / "keys"))
            stream = llm.stream("go on", SamplingParams(max_tokens=400))
            next(stream)
            proxy.pull(for_good=True)
            with pytest.raises(EngineDead, match=rf"the engine \(pid {os.getpid()}\) cannot be reached"):
                for _ in stream:
                    pass
            eventually(lambda: serving.num_unfinished == 0 and serving.service.num_front_ends == 0)
            llm.close()
        finally:
            proxy.close()


def test_the_engines_end_is_told_to_each_request_once(fake: Installed) -> None:  # E2
    with serve(fake.config(step_seconds=0.02)) as serving, LLM.connect(serving.address) as llm:
        streams = [llm.stream("go on", SamplingParams(max_tokens=400)) for _ in range(3)]
        for stream in streams:
            next(stream)
        serving.service.close(EngineDead("the engine stopped: rank 1 was killed by SIGKILL"))
        said = []
        for stream in streams:
            with pytest.raises(EngineDead) as end:
                list(stream)
            said.append(end.value)
        assert {str(one) for one in said} == {"the engine stopped: rank 1 was killed by SIGKILL"}
        assert len({id(one) for one in said}) == 3
        for stream in streams:
            assert list(stream) == []
        with pytest.raises(EngineDead, match="rank 1 was killed"):
            llm.generate("say:x")


def test_an_engine_that_stops_without_a_word(fake: Installed) -> None:  # E2
    with serve(fake.config(step_seconds=0.02)) as serving, LLM.connect(serving.address) as llm:
        stream = llm.stream("go on", SamplingParams(max_tokens=400))
        next(stream)
        serving.service._sessions.clear()  # so that nobody is told
        serving.service.close()
        with pytest.raises(EngineDead, match=rf"\(pid {os.getpid()}\) is gone: it has closed the connection"):
            list(stream)


def test_an_engine_that_is_silent_is_not_waited_for_for_ever(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:  # E2
    monkeypatch.setattr("enginebay.engine.remote.link._SILENCE_SECONDS", 1.5)
    with LLM.connect(serving.address) as llm:
        monkeypatch.setattr(serving.service, "_turn", lambda: threading.Event().wait(0.05))
        with pytest.raises(EngineDead, match=r"has said nothing for 1.5 s: is it stopped\?"):
            llm.generate("say:x")


def test_a_large_batch_goes_in_parts(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("enginebay.engine.remote.remote._SUBMIT_BYTES", 10_000)
    with LLM.connect(serving.address) as llm:
        answers = llm.generate([f"say:{number}" for number in range(50)])
        assert [answer.text for answer in answers] == [str(number) for number in range(50)]
        assert all(answer.choices[0].finish_reason is FinishReason.STOP for answer in answers)


def _call(llm: LLM, payload: bytes) -> None:
    llm.collective_rpc("some.thing", payload)


def _ask(llm: LLM, command: Control) -> None:
    """Past what ``LLM`` looks at before it asks."""
    llm._front.runtime.wait(llm._front.client.control(command), None)


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (
            lambda llm: _call(llm, bytes(64 * 1024 * 1024)),
            r"^that is 67,10\d,\d{3} bytes .* at most 67,108,864: send less",
        ),
        (
            lambda llm: _ask(llm, UpdateWeights(path="\udc80")),
            "^that cannot be sent to the engine: UnicodeEncodeError: ",
        ),
        (
            lambda llm: _ask(llm, CallWorkers(method="a.\udc80")),
            "^that cannot be sent to the engine: UnicodeEncodeError: ",
        ),
        (lambda llm: llm.generate("x", tenant="\udc80"), "."),
        (lambda llm: llm.generate("x", extra={"\udc80": b""}), "."),
        (lambda llm: llm.stream("x", request_id="\udc80"), "."),
        (lambda llm: llm.abort("\udc80"), "."),
    ],
)
def test_what_cannot_be_sent_fails_alone(serving: Serving, ask: Callable[[LLM], object], said: str) -> None:  # E4
    with LLM.connect(serving.address) as llm:
        stream = llm.stream("say:beside it")
        with pytest.raises(RequestError, match=said):
            ask(llm)
        assert stream.completion().text == "beside it"
        assert llm.status()["state"] == "ready"
        assert llm.generate("say:after it")[0].text == "after it"
        assert not llm._front.client._requests.is_waited_for  # type: ignore[attr-defined]  # remote
    eventually(lambda: serving.num_unfinished == 0)


@pytest.mark.parametrize("limit", [0, 100])
def test_requests_that_cannot_be_sent_are_told_so(
    serving: Serving, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    with LLM.connect(serving.address) as llm:
        with monkeypatch.context() as patch:
            patch.setattr("enginebay.engine.remote.link.MAX_FRONT_BYTES", limit)
            with pytest.raises(
                InvalidRequest, match=rf"bytes as a message to the engine, and it takes at most {limit}"
            ):
                llm.generate(["x" * 200, "y"])
            refused = llm.generate(["x" * 200, "y"], errors="return")
        assert all("bytes as a message to the engine" in str(one.error) for one in refused)
        assert llm.generate("say:after it")[0].text == "after it"


@pytest.mark.parametrize(
    "command",
    [ReadStatus(), Drain(), Drain(timeout=0.1), UpdateWeights(path="x"), CallWorkers(method="a.b", timeout=0.1)],
)
def test_a_command_without_an_answer_is_not_waited_for_for_ever(
    serving: Serving, monkeypatch: pytest.MonkeyPatch, command: Control
) -> None:  # E2
    monkeypatch.setattr(serving.service._control, "hear", lambda arrival, message: True)
    with LLM.connect(serving.address) as llm:
        client = llm._front.client
        client.welcome = msgspec.structs.replace(  # type: ignore[attr-defined]  # remote
            client.welcome,  # type: ignore[attr-defined]  # the same
            patience=0.1,
            command_patience=0.1,
        )
        with pytest.raises(WorkerHung, match=rf"^the engine \(pid {os.getpid()}\) has not answered in the time"):
            llm._front.runtime.wait(client.control(command), None)
        assert llm.generate("say:all the same")[0].text == "all the same"


def test_a_command_has_the_time_that_the_engine_may_take_for_it(fake: Installed) -> None:
    with serve(fake.config(), groups=3) as serving, LLM.connect(serving.address) as llm:
        client = llm._front.client
        assert isinstance(client, RemoteClient)
        seconds = client._patience_with
        assert seconds(ReadStatus()) == 610.0
        assert seconds(UpdateWeights(path="x")) == seconds(Drain()) == 610.0 + 120.0 + 3 * (2 * 600.0 + 2 * 300.0)
        assert seconds(Drain(timeout=1000.0)) == seconds(Drain()) + 3000.0
        assert seconds(CallWorkers(method="a.b", timeout=7.0)) == seconds(CallWorkers(method="a.b")) + 21.0
