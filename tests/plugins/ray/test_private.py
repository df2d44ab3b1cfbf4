"""A Ray of our own: it is there while the engine runs, and nothing of it is left, however the engine ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from enginebay.errors import StartFailed
from enginebay.runtime import system_runtime
from enginebay_ray import guardian
from enginebay_ray.actors import answer
from enginebay_ray.cluster import _outliving
from enginebay_ray.private import PrivateFolder
from support.census import Census
from support.fake_engines import Installed, install

PATIENCE = 120.0

SWEEP = "from enginebay.runfolder import RunFolder; RunFolder.make().close()"

ENGINE = """
import json, os, sys, time
from enginebay import LLM, SamplingParams

config = json.loads(sys.argv[1])
for life in (1, 2):
    llm = LLM(config)
    print(llm.generate("say:abc", SamplingParams(max_tokens=4))[0].text, flush=True)
    print(os.environ.get("RAY_AUTH_TOKEN_PATH"), "RAY_AUTH_MODE" in os.environ, flush=True)
    if life == 1:
        llm.close()
        print(os.listdir(os.environ["ENGINEBAY_RUN"]), flush=True)
print("ready", flush=True)
time.sleep(600)
"""

SHARED = """
import json, sys
from enginebay import LLM, SamplingParams
from enginebay_ray import cluster, guardian

def kill_ray():
    private = cluster._SHARED[0]._private
    for pid in private.processes():
        guardian.kill(pid, private.path, private.token)

config = json.loads(sys.argv[1])
with LLM(config) as one, LLM(config) as other:
    for life in (1, 2):
        for llm in (one, other):
            print(llm.generate("say:abc", SamplingParams(max_tokens=4))[0].text, flush=True)
        kill_ray()
print("closed", flush=True)
"""

SERVERLESS = """
import json, sys, time
from enginebay import LLM, SamplingParams
from enginebay_ray import cluster, guardian
from pathlib import Path

with LLM(json.loads(sys.argv[1])) as llm:
    private = cluster._SHARED[0]._private
    (server,) = [p for p in private.processes() if b"/gcs_server" in Path(f"/proc/{p}/cmdline").read_bytes()]
    guardian.kill(server, private.path, private.token)
    until = time.monotonic() + 70  # Ray gives its server 60 seconds to come back
    while time.monotonic() < until:
        assert llm.generate("say:abc", SamplingParams(max_tokens=4))[0].text == "abc"
    worker = llm.health().workers[0].incarnation.pid
    guardian.kill(worker, private.path, private.token)
    assert llm.generate("say:abc", SamplingParams(max_tokens=4))[0].text == "abc"
    assert llm.health().workers[0].incarnation.pid != worker
print("closed", flush=True)
"""


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Installed]:
    yield from install(tmp_path, monkeypatch)


def config_of(fake: Installed, **options: float) -> str:
    return json.dumps(
        {**fake.config(**options), "executor": {"use": "ray", "options": {"env": ["PYTHONPATH"], "gpus_per_worker": 0}}}
    )


@pytest.mark.soak
def test_nothing_is_left_of_it_after_a_stop_and_after_a_kill(fake: Installed, tmp_path: Path) -> None:  # X12, X13
    root = Path(tempfile.mkdtemp(prefix="eb-"))
    home = tmp_path / "home"
    home.mkdir()
    census = Census([root, home])
    environ = {**fake.environ(), "HOME": str(home), "ENGINEBAY_RUN": str(root)}
    engine = subprocess.Popen(
        [sys.executable, "-P", "-c", ENGINE, config_of(fake)],
        env=census.environment(environ),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert engine.stdout is not None
    try:
        # nothing of Ray's is printed among the answers, and the environment is as it was
        life = ["abc\n", "None False\n"]
        assert [engine.stdout.readline() for _ in range(6)] == [*life, "[]\n", *life, "ready\n"]
        assert [path.stat().st_mode & 0o777 for path in root.glob("*/ray/token")] == [0o600]
        assert not (home / ".ray").exists()
        ours = census.processes()
        assert any("guardian.py" in command for command in ours.values())
        workers = [pid for pid, command in ours.items() if "ray::RayWorker" in command]
        assert [os.getpriority(os.PRIO_PROCESS, pid) for pid in workers] == [os.getpriority(os.PRIO_PROCESS, 0)]
        engine.send_signal(signal.SIGKILL)
    finally:
        engine.kill()
        engine.wait()
        engine.stdout.close()
    until = time.monotonic() + 60
    while census.processes() and time.monotonic() < until:
        time.sleep(0.05)
    assert census.processes() == {}
    assert not list(root.glob("*/ray"))
    # what the kill has left of the run folder is swept by whoever starts next
    subprocess.run([sys.executable, "-P", "-c", SWEEP], env=environ, check=True, timeout=PATIENCE)
    census.check()
    root.rmdir()


@pytest.mark.soak
def test_engines_that_share_it_survive_its_death_and_stop_after_it(fake: Installed) -> None:  # X4, X13
    root = Path(tempfile.mkdtemp(prefix="eb-"))
    census = Census([root])
    environ = {**fake.environ(), "ENGINEBAY_RUN": str(root)}
    done = subprocess.run(
        [sys.executable, "-P", "-c", SHARED, config_of(fake)],
        env=census.environment(environ),
        stdout=subprocess.PIPE,
        text=True,
        timeout=2 * PATIENCE,
        check=True,
    )
    assert done.stdout.split("\n") == ["abc", "abc", "abc", "abc", "closed", ""]
    until = time.monotonic() + 60
    while census.processes() and time.monotonic() < until:  # a stop does not wait for ever for a Ray that has died
        time.sleep(0.05)
    subprocess.run([sys.executable, "-P", "-c", SWEEP], env=environ, check=True, timeout=PATIENCE)
    census.check()
    root.rmdir()


@pytest.mark.soak
def test_an_engine_outlives_rays_server(fake: Installed) -> None:  # X12, R2
    """Ray ends the processes that are connected to it when its server stays away: not the engine with its requests."""
    root = Path(tempfile.mkdtemp(prefix="eb-"))
    census = Census([root])
    done = subprocess.run(
        [sys.executable, "-P", "-c", SERVERLESS, config_of(fake, step_seconds=0.05)],
        env=census.environment({**fake.environ(), "ENGINEBAY_RUN": str(root)}),
        stdout=subprocess.PIPE,
        text=True,
        timeout=2 * PATIENCE,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "closed\n")
    census.check(PATIENCE)
    root.rmdir()


def test_how_long_rays_server_may_be_away_is_the_users_to_say(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "RAY_gcs_rpc_server_reconnect_timeout_s"
    with _outliving():
        assert int(os.environ[name]) > 3600
    assert name not in os.environ
    monkeypatch.setenv(name, "7")
    with _outliving():
        assert os.environ[name] == "7"
    assert os.environ[name] == "7"


def test_a_folder_whose_path_is_too_long_is_not_used(tmp_path: Path) -> None:
    deep = tmp_path / ("x" * 60)
    deep.mkdir()
    private = PrivateFolder(deep)
    assert private.path.parent == Path(tempfile.gettempdir())
    assert (private.path.stat().st_mode & 0o777, private.token.stat().st_mode & 0o777) == (0o700, 0o600)
    with private.environment():
        assert os.environ["RAY_AUTH_TOKEN_PATH"] == str(private.token)
    assert "RAY_AUTH_TOKEN_PATH" not in os.environ
    private.remove()
    assert not private.path.exists()


@pytest.fixture
def started() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts sleepers that look like this or that to who looks at processes."""
    made: list[subprocess.Popen[bytes]] = []

    def start(*words: str, **environ: str) -> subprocess.Popen[bytes]:
        code = "import sys; print(flush=True); sys.stdin.read()"
        child = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", code, *words],
            env={**os.environ, **environ},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        made.append(child)
        assert child.stdout is not None
        child.stdout.readline()  # before it runs its program it is this one
        return child

    yield start
    for child in made:
        child.kill()
        child.communicate()


def test_its_processes_are_known_from_others_and_killed(
    tmp_path: Path, started: Callable[..., subprocess.Popen[bytes]]
) -> None:  # X13
    private = PrivateFolder(tmp_path)
    with private.environment():
        server = started(f"--dir={private.path}/session", "/core/gcs_server")
        worker = started("nameless", RAY_RAYLET_PID="1")
        users = started("a program of the user's that was started meanwhile")
    stranger = started(f"{private.path}/session", RAY_RAYLET_PID="1")
    assert sorted(private.processes()) == sorted([server.pid, worker.pid])
    assert private.is_served()
    reaped: list[int] = []
    waiter = threading.Thread(target=lambda: reaped.extend([server.wait(), worker.wait()]))
    waiter.start()
    guardian.kill(users.pid, private.path, private.token)
    private.end_processes(0.0)
    waiter.join()
    assert not private.is_served()
    assert reaped == [-signal.SIGKILL, -signal.SIGKILL]
    assert (users.poll(), stranger.poll()) == (None, None)
    private.remove()


def test_a_title_over_the_environment_hides_nobody(
    tmp_path: Path, started: Callable[..., subprocess.Popen[bytes]]
) -> None:  # X12
    private = PrivateFolder(tmp_path)
    titled = 'exec -a "ray::DashboardAgent" sleep 600'
    with open(private.path / "agent.log", "w") as log:
        agent = subprocess.Popen(["bash", "-c", titled], stdout=log)
    other = subprocess.Popen(["bash", "-c", titled])
    try:
        while private.processes() != [agent.pid]:
            time.sleep(0.001)
    finally:
        for child in (agent, other):
            child.kill()
            child.wait()
    private.remove()


def test_the_guardian_ends_what_an_engine_leaves_that_says_nothing(tmp_path: Path) -> None:  # X12
    """The engine dies before and after the guardian has begun to watch it."""
    script = """
import os, sys, subprocess
from pathlib import Path
from enginebay.runtime import system_runtime
from enginebay.errors import StartFailed
from enginebay.runtime import system_runtime
from enginebay_ray import guardian
from enginebay_ray.actors import answer
from enginebay_ray.private import PrivateFolder
private = PrivateFolder(Path(sys.argv[1]))
with private.environment():
    subprocess.Popen(["sleep", "600", f"{private.path}/"], stderr=subprocess.DEVNULL)
    subprocess.Popen([sys.executable, "-c", "input()", f"{private.path}/"], stdin=subprocess.PIPE)
guardian = private.guard(system_runtime(0).spawner)
print(guardian.pid, flush=True)
if sys.argv[2] == "later":
    while b"guardian.py" not in Path(f"/proc/{guardian.pid}/cmdline").read_bytes():
        pass
os.kill(os.getpid(), 9)
"""
    for when in ("at once", "later"):
        census = Census([tmp_path])
        done = subprocess.run(
            [sys.executable, "-P", "-c", script, str(tmp_path), when],
            env=census.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == -signal.SIGKILL
        assert int(done.stdout) > 0
        census.check(PATIENCE)


def test_an_answer_that_comes_too_late_is_given_back() -> None:
    runtime, held, undone = system_runtime(0), threading.Event(), threading.Event()

    def late() -> str:
        held.wait()
        return "a place"

    with pytest.raises(TimeoutError):
        answer(runtime, "test", late, 0.0, lambda what: undone.set() if what == "a place" else None)
    held.set()
    assert undone.wait(PATIENCE)

    def broken() -> str:
        raise StartFailed("no place")

    deadline = runtime.clock.now() + PATIENCE
    with pytest.raises(StartFailed, match="no place"):
        answer(runtime, "test", broken, deadline)
    assert answer(runtime, "test", lambda: "a place", deadline) == "a place"
