"""``enginebay up`` as a process: ready, used by others, drained, killed; who is told what, and what is left."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import signal
import socket as sockets
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from enginebay import LLM, SamplingParams
from enginebay.cli import main, stop
from enginebay.cli._connect import ask
from enginebay.engine.remote.remote import RemoteClient
from enginebay.errors import EngineBusy, EngineDead, StartFailed, WorkerLost
from enginebay.messages import Control, ControlDone
from enginebay.runfolder import run_root
from support.census import Census
from support.fake_engines import Installed
from support.served import eventually
from support.up import SECONDS, Up, up

LONG = SamplingParams(max_tokens=400)

USER = """
import sys
from enginebay import LLM, SamplingParams
llm = LLM.connect(sys.argv[1])
streams = [llm.stream("go on", SamplingParams(max_tokens=400)) for _ in range(3)]
for stream in streams:
    next(stream)
print("going", flush=True)
said = []
for stream in streams:
    try:
        list(stream)
    except Exception as error:
        said.append(f"{type(error).__name__}: {error}")
print(sorted(said), flush=True)
"""


class Done(NamedTuple):
    """What a command has come to."""

    code: int
    out: str
    err: str


Run = Callable[..., Done]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run another command of the command line, in this process. None while a front end of this process is open."""

    def run(*arguments: str, stdin: str = "") -> Done:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        with pytest.raises(SystemExit) as caught:
            main([*arguments])
        out, err = capsys.readouterr()
        return Done(int(caught.value.code or 0), out, err)

    return run


def some_users(fake: Installed, engine: Up, count: int) -> list[subprocess.Popen[str]]:
    """Front ends in processes of their own, each with three requests that take a while."""
    argv = [sys.executable, "-P", "-c", USER, engine.wait_until_ready().address]
    started = [subprocess.Popen(argv, env=fake.environ(), stdout=subprocess.PIPE, text=True) for _ in range(count)]
    engine.users += started
    for process in started:
        assert process.stdout is not None
        assert process.stdout.readline() == "going\n"
    return started


def user(fake: Installed, engine: Up) -> subprocess.Popen[str]:
    """One of them."""
    return some_users(fake, engine, 1)[0]


def last_words(process: subprocess.Popen[str]) -> str:
    return process.communicate(timeout=SECONDS)[0]


def test_it_is_used_asked_and_stopped_from_the_command_line(fake: Installed, tmp_path: Path, run: Run) -> None:
    census = Census([run_root()])
    with up(fake, tmp_path, environ=census.environment()) as engine:
        engine.wait_until_ready()
        assert engine.address.startswith(f"ipc://{run_root()}/")
        assert re.search(r"^  runner +fake$", engine.said, re.MULTILINE)
        assert engine.said.endswith(f"ask it with: enginebay generate PROMPT --connect {engine.address}\n")
        for arguments in (("say:hi", "--connect"), ("--connect", "say:hi"), ("say:hi", "--connect", engine.address)):
            assert run("generate", *arguments) == (0, "hi\n", "")
        assert run("chat", "--connect", stdin="say:hello\n").out == "hello\n"
        status = run("status")
        told = dict(line.split(maxsplit=1) for line in status.out.splitlines())
        assert (told["state"], told["health"]) == ("ready", "healthy")
        assert re.match(r"Ready for \d+ s, pid \d+, ready after [\d.]+ s: ", told["group-0/rank-0/cpu:0"])
        mixed = run("generate", "x", "--connect", "--set", "scheduler.max_num_seqs=2")
        assert mixed.code == 2
        assert "with --connect the engine has its own config" in mixed.err
        assert run("swap", "scheduler=priority").code == 0
        assert run("swap", "scheduler=nope").code == 2
        assert run("stop", "--drain") == (0, "", f"the engine (pid {engine.pid}) has stopped\n")
        assert engine.wait() == 0
        told_of_it = [re.sub(r"after [\d.]+ s", "after T", line) for line in engine.said.splitlines()[-8:]]
        assert told_of_it[3].startswith(
            "swap scheduler=nope: refused or failed after T: PluginNotFound: No scheduler named 'nope'"
        )
        assert [*told_of_it[:3], *told_of_it[4:]] == [
            "swap scheduler=priority: begun",
            "swap scheduler=priority: done after T",
            "swap scheduler=nope: begun",
            "drain: begun",
            "drain: done after T",
            "stop: asked for by a front end; nothing is unfinished",
            "stopped",
        ]
        gone = run("generate", "x", "--connect")
        assert gone.code == 70
        assert gone.err.startswith("enginebay: no engine of this user runs here")
        assert gone.err.count("\n") == 1
    census.check()


def test_its_end_may_be_heard_before_its_answer(
    fake: Installed, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They come on two lines."""

    def overtaken(client: RemoteClient, command: Control) -> ControlDone:
        ask(client, command)
        raise EngineDead("the engine was stopped")

    monkeypatch.setattr(stop, "ask", overtaken)
    with up(fake, tmp_path) as engine:
        engine.wait_until_ready()
        assert run("stop") == (0, "", f"the engine (pid {engine.pid}) has stopped\n")
        assert engine.wait() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_the_first_signal_drains(fake: Installed, tmp_path: Path, number: signal.Signals) -> None:  # E5
    with up(fake, tmp_path, step_seconds=0.02) as engine:
        with LLM.connect(engine.wait_until_ready().address) as llm, LLM.connect(engine.address) as late:
            stream = llm.stream("say:what was begun is ended")
            next(stream)
            os.kill(engine.pid, number)
            engine.wait_until_said("once more aborts them")
            eventually(lambda: refuses(late))
            assert stream.completion().text == "what was begun is ended"
        assert engine.wait() == 0


def refuses(llm: LLM) -> bool:
    """Whether new requests are refused, to be asked again later, or at the engine's end for good."""
    try:
        llm.generate("say:x")
    except EngineBusy as error:
        return error.status == 503
    return False


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_second_signal_aborts(fake: Installed, tmp_path: Path, number: signal.Signals, code: int) -> None:  # E5
    with up(fake, tmp_path, step_seconds=0.1) as engine:
        users = some_users(fake, engine, 2)
        os.kill(engine.pid, number)
        engine.wait_until_said("once more aborts them")
        os.kill(engine.pid, number)
        assert engine.wait() == code
        told = f"EngineDead: the engine (pid {engine.pid}) was stopped"
        assert [last_words(one) for one in users] == [f"{[told] * 3}\n"] * 2


def test_the_time_to_drain_is_bounded(fake: Installed, tmp_path: Path) -> None:  # E5
    with up(fake, tmp_path, "--set", "deadlines.drain=0.3", step_seconds=0.05) as engine:
        one = user(fake, engine)
        os.kill(engine.pid, signal.SIGTERM)
        assert engine.wait() == 143
        assert "[deadlines] drain is over: unfinished requests are aborted (3)" in engine.said
        assert "was stopped" in last_words(one)


def test_a_signal_during_the_start_stops_it(fake: Installed, tmp_path: Path) -> None:
    with up(fake, tmp_path) as engine:
        engine.wait_until_said("loading the model")
        os.kill(engine.pid, signal.SIGTERM)
        assert engine.wait() in (143, 0)  # 0: it was ready by then, and drained
    assert list(run_root().iterdir()) == []


def test_an_engine_that_is_killed_is_missed_by_all(fake: Installed, tmp_path: Path) -> None:  # E2 X12
    census = Census([run_root()])
    with up(fake, tmp_path, environ=census.environment(), step_seconds=0.1) as engine:
        users = some_users(fake, engine, 2)
        os.kill(engine.pid, signal.SIGKILL)
        told = f"EngineDead: the engine (pid {engine.pid}) is gone: it was killed, or ended without a word"
        engine.wait()
        for one in users:
            words = last_words(one)
            closed = told.replace("it was killed, or ended without a word", "it has closed the connection")
            assert words in (f"{[told] * 3}\n", f"{[closed] * 3}\n")  # the latter: it was not reaped yet
    census.check()


def test_an_engine_that_fails_says_why_once_to_each(fake: Installed, tmp_path: Path) -> None:  # E2 E8
    with up(fake, tmp_path, step_seconds=0.05) as engine:
        users = some_users(fake, engine, 2)
        with LLM.connect(engine.address) as llm, pytest.raises(EngineDead) as end:
            llm.generate("crash")
        assert engine.wait() == 70
        assert "asked to crash" in str(end.value)
        assert "\n" not in str(end.value)
        assert engine.said.splitlines()[-1] == f"enginebay: {end.value}"
        assert [last_words(one) for one in users] == [f"{[f'EngineDead: {end.value}'] * 3}\n"] * 2


def test_workers_that_are_lost_again_and_again_are_the_end(fake: Installed, tmp_path: Path) -> None:  # E2
    with up(fake, tmp_path, "--set", "executor.use=mp", step_seconds=0.05) as engine:
        with LLM.connect(engine.wait_until_ready().address) as llm:
            stream = llm.stream("go on", LONG)
            next(stream)
            while engine.process.poll() is None:
                kill_workers(engine)
                time.sleep(0.05)
            with pytest.raises((WorkerLost, StartFailed)) as end:  # twice at the same place of a start, or not
                list(stream)
        assert engine.wait() == (4 if end.type is WorkerLost else 3)
        assert re.fullmatch(r"the engine stopped: .*rank 0.*signal 9.*", str(end.value))
        assert engine.said.splitlines()[-1] == f"enginebay: {end.value}"


def kill_workers(engine: Up) -> None:
    """All that the engine has now."""
    with contextlib.suppress(psutil.Error):  # the engine has just ended
        for child in psutil.Process(engine.pid).children():
            with contextlib.suppress(psutil.Error):  # it has just ended
                if "enginebay.worker.process" in child.cmdline():
                    child.kill()


def test_a_front_end_that_is_killed_frees_its_blocks(fake: Installed, tmp_path: Path) -> None:  # E6
    with up(fake, tmp_path, step_seconds=0.1) as engine, LLM.connect(engine.wait_until_ready().address) as llm:
        before = llm.stats().scheduler.num_free_blocks
        one = user(fake, engine)
        assert llm.stats().unfinished == 3
        one.kill()
        last_words(one)
        eventually(lambda: llm.stats().unfinished == 0)
        eventually(lambda: llm.stats().scheduler.num_free_blocks == before)  # a step may be in flight
        assert llm.generate("say:untouched")[0].text == "untouched"


def test_a_front_end_that_is_stopped_for_too_long_loses_its_requests(fake: Installed, tmp_path: Path) -> None:  # E6
    with up(fake, tmp_path, "--set", "server.stall=1.5", step_seconds=0.1) as engine:
        one = user(fake, engine)
        one.send_signal(signal.SIGSTOP)
        with LLM.connect(engine.address) as llm:
            eventually(lambda: llm.stats().unfinished == 0)
        one.send_signal(signal.SIGCONT)
        assert last_words(one).count("has taken nothing of what was sent for 1.5 s: its requests were aborted") == 3


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--address", "nowhere"), 2, "'nowhere' is no address of an engine"),
        (
            ("--address", "tcp://127.0.0.1:0"),
            2,
            "can be reached by other users, so both ends need keys: give --keys FILE",
        ),
        (("--keys", "k"), 2, "keys are for tcp:// addresses"),
        (("--set", "runner.options.fail=load_model"), 3, "load_model"),
        (("--set", "server.stall=-1"), 2, "[server] stall"),
    ],
)
def test_what_cannot_be_started(fake: Installed, run: Run, arguments: tuple[str, ...], code: int, said: str) -> None:
    done = run("up", *fake.arguments(), *arguments)
    assert done.code == code
    assert said in done.err
    assert done.out == ""
    assert list(run_root().iterdir()) == []


def test_a_socket_is_never_taken_from_who_listens(fake: Installed, tmp_path: Path, run: Run) -> None:  # X11
    path = run_root() / "own"
    with up(fake, tmp_path, "--address", f"ipc://{path}") as engine:
        engine.wait_until_ready()
        second = run("up", *fake.arguments(), "--address", f"ipc://{path}")
        assert second.code == 2
        assert second.err.endswith(f"another engine listens at {path}: give another --address, or stop that one\n")
        with LLM.connect(engine.address) as llm:
            assert llm.generate("say:still mine")[0].text == "still mine"
        os.kill(engine.pid, signal.SIGKILL)
        engine.wait()
    assert path.exists()
    with up(fake, tmp_path, "--address", f"ipc://{path}") as engine:  # what a killed one left is no hindrance
        assert engine.wait_until_ready().address == f"ipc://{path}"
        os.kill(engine.pid, signal.SIGTERM)
        assert engine.wait() == 0
    assert not path.exists()
    path.write_text("mine")
    taken = run("up", *fake.arguments(), "--address", f"ipc://{path}")
    assert "is no socket, and is in the way" in taken.err
    assert path.read_text() == "mine"
    path.unlink()


def test_every_listener_of_the_tree(fake: Installed, tmp_path: Path, run: Run) -> None:
    """Security: by default nothing listens but two sockets in a private folder; over TCP, what was asked for."""
    keys = tmp_path / "keys"
    with (
        up(fake, tmp_path) as local,
        up(fake, tmp_path, "--address", "tcp://127.0.0.1:0", "--keys", str(keys)) as tcp,
    ):
        local.wait_until_ready()
        tcp.wait_until_ready()
        socket = local.address.removeprefix("ipc://")
        assert listeners(local) == {socket, f"{socket}.ctl"}
        hint = f"ask it with: enginebay generate PROMPT --connect {tcp.address} --keys {keys}.client\n"
        assert tcp.said.endswith(hint), tcp.said
        port = tcp.address.rpartition(":")[2]
        asked = listeners(tcp)
        assert len(asked) == 2
        assert f"127.0.0.1:{port}" in asked
        assert all(one.startswith("127.0.0.1:") for one in asked)
        for file in (keys, tmp_path / "keys.client"):
            assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert f"made {keys}, and {keys}.client for clients" in tcp.said
        done = run("generate", "say:by tcp", "--connect", tcp.address, "--keys", f"{keys}.client")
        assert done.out == "by tcp\n", done.err
        secrets = keys.read_text() + (tmp_path / "keys.client").read_text()
        for process in (local, tcp):
            seen = Path(f"/proc/{process.pid}/cmdline").read_text() + Path(f"/proc/{process.pid}/environ").read_text()
            assert not [part for part in secrets.split('"') if len(part) == 40 and part in seen]
        with sockets.create_connection(("127.0.0.1", int(port))) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        with LLM.connect(tcp.address, keys=f"{keys}.client") as llm:
            assert llm.generate("say:unharmed")[0].text == "unharmed"


def listeners(engine: Up) -> set[str]:
    """Where the engine and its children listen: TCP and UDP addresses, and named Unix sockets."""
    family = [psutil.Process(engine.pid), *psutil.Process(engine.pid).children(recursive=True)]
    found = set()
    inodes = set()
    for process in family:
        for one in process.net_connections(kind="inet"):
            if one.status == psutil.CONN_LISTEN or one.type == sockets.SOCK_DGRAM:
                found.add(f"{one.laddr.ip}:{one.laddr.port}")
        for entry in Path(f"/proc/{process.pid}/fd").iterdir():
            target = os.readlink(entry)
            if target.startswith("socket:["):
                inodes.add(target[8:-1])
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        parts = line.split(maxsplit=7)
        if len(parts) > 7 and parts[6] in inodes and int(parts[3], 16) & 0x10000:  # it accepts connections
            found.add(parts[7])
    return found


def test_one_that_listens_at_an_address_of_its_own_is_found(fake: Installed, tmp_path: Path, run: Run) -> None:
    folder = Path(tempfile.mkdtemp(prefix="eb-"))  # short, as a socket's path has to be
    try:
        with up(fake, tmp_path, "--address", f"ipc://{folder}/here") as engine:
            assert engine.wait_until_ready().address == f"ipc://{folder}/here"
            told = run("status")
            assert (told.code, told.err) == (0, "")
            assert str(engine.pid) in told.out
    finally:
        shutil.rmtree(folder)


def test_two_engines_of_one_user_share_nothing(fake: Installed, tmp_path: Path, run: Run) -> None:  # X11
    with up(fake, tmp_path) as one, up(fake, tmp_path) as two:
        threads = [threading.Thread(target=engine.wait_until_ready) for engine in (one, two)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not listeners(one) & listeners(two)
        refused = run("generate", "x", "--connect")
        assert refused.code == 2
        assert "2 engines of this user run here; say which: ipc://" in refused.err
        with LLM.connect(one.address) as first, LLM.connect(two.address) as second:
            os.kill(one.pid, signal.SIGKILL)
            with pytest.raises(EngineDead):
                first.generate("go on", LONG)
            assert second.generate("say:here")[0].text == "here"
