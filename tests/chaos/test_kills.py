"""Each process of a running tree killed: whoever waits is told, and nothing of the run is left."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from enginebay import LLM
from enginebay.messages import Phase
from enginebay.runfolder import run_root
from support.census import Census
from support.fake_engines import Installed
from support.served import eventually
from support.up import SECONDS, Up, up

USER = """
import sys, time
from enginebay import LLM, EnginebayError, SamplingParams
llm = LLM.connect(sys.argv[1])
print("going", flush=True)
try:
    while True:
        begun = time.monotonic()
        llm.generate([f"{number} go on" for number in range(4)], SamplingParams(max_tokens=20))
        print(begun, flush=True)
except EnginebayError as error:
    print(f"{type(error).__name__}: {error}", flush=True)
"""
WORKERS = ("--set", "executor.use=mp", "--set", "parallel.data_parallel_size=2")


def user(fake: Installed, engine: Up, environ: dict[str, str]) -> subprocess.Popen[str]:
    """A front end that asks again and again."""
    argv = [sys.executable, "-P", "-c", USER, engine.wait_until_ready().address]
    process = subprocess.Popen(argv, env={**fake.environ(), **environ}, stdout=subprocess.PIPE, text=True)
    engine.users.append(process)
    assert process.stdout is not None
    assert process.stdout.readline() == "going\n"
    return process


def workers(engine: Up) -> list[int]:
    """The engine's children that do the work, in the order in which they were started."""
    found = []
    for one in psutil.Process(engine.pid).children():
        try:
            if "enginebay.worker.process" in " ".join(one.cmdline()):
                found.append(one.pid)
        except psutil.Error:
            continue  # it has just ended
    return sorted(found)


def wait_until_answered(one: subprocess.Popen[str], since: float) -> None:
    """Until a batch that began after ``since`` was answered: its four prompts are of both groups."""
    assert one.stdout is not None
    while float(one.stdout.readline()) < since:
        pass  # an older one


def wait_until_whole(engine: Up) -> None:
    """Until both groups have workers that are ready: one of them may have answered all meanwhile.

    Whoever is killed in two starts one after the other is not started again.
    """
    eventually(lambda: len(workers(engine)) == 2, SECONDS)
    with LLM.connect(engine.address) as llm:
        eventually(lambda: [one.phase for one in llm.health().workers] == [Phase.READY] * 2, SECONDS)


def rampage(fake: Installed, folder: Path, generator: random.Random, kills: int) -> None:
    """One tree from its start to nothing: front ends and workers are killed and come anew, the engine goes last."""
    census = Census([run_root()])
    mark = {name: value for name, value in census.environment().items() if name not in os.environ}
    with up(fake, folder, *WORKERS, environ=mark, step_seconds=0.01) as engine:
        users = [user(fake, engine, mark) for _ in range(2)]
        for _ in range(kills - 1):
            crew = workers(engine)
            victim = generator.choice(["front end", *range(len(crew))])
            time.sleep(generator.uniform(0.0, 0.3))
            if isinstance(victim, str):
                users[0].kill()
                users[0].wait(SECONDS)
                users = [users[1], user(fake, engine, mark)]
            else:
                os.kill(crew[victim], signal.SIGKILL)
                killed = time.monotonic()
                for one in users:
                    wait_until_answered(one, killed)
                wait_until_whole(engine)
        pids = [engine.pid, *workers(engine)]
        os.kill(engine.pid, signal.SIGKILL)
        engine.wait()
        for one in users:
            said = one.communicate(timeout=SECONDS)[0].splitlines()
            assert said[-1].startswith(f"EngineDead: the engine (pid {engine.pid}) is gone")
        eventually(lambda: not any(map(psutil.pid_exists, pids)), 5.0)
        assert sorted(run_root().rglob("*")) == []  # the front ends have tidied up, since the engine could not
    census.check()


def test_nothing_is_left_whoever_is_killed(fake: Installed, tmp_path: Path) -> None:  # X12
    """A front end and both workers, one of them twice, and the engine at last."""
    rampage(fake, tmp_path, random.Random(2), kills=5)


def test_what_nobody_could_remove_goes_with_the_next_start(fake: Installed, tmp_path: Path) -> None:  # X11 X12
    census = Census([run_root()])
    mark = {name: value for name, value in census.environment().items() if name not in os.environ}
    with up(fake, tmp_path, *WORKERS, environ=mark) as engine:
        one = user(fake, engine, mark)
        for pid in (one.pid, engine.pid):  # nobody is left to tidy up
            os.kill(pid, signal.SIGKILL)
        one.wait(SECONDS)
        engine.wait()
    census.check()


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_nothing_is_left_after_two_hundred_kills(fake: Installed, tmp_path: Path) -> None:  # X12
    for seed in range(40):
        rampage(fake, tmp_path, random.Random(100 + seed), kills=5)
