"""The executor ``ray`` on a Ray of two nodes, of which the second has two (pretended) GPUs."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import psutil
import pytest

from enginebay import LLM, SamplingParams
from enginebay.errors import StartFailed
from enginebay.interfaces import Kind
from enginebay.runtime import pid_space
from enginebay.telemetry import read_spans
from enginebay.testing import ExecutorSuite
from enginebay.testing._executor_driver import START_CALLS, ExecutorDriver
from enginebay.testing._offer import offer
from enginebay.testing.fakes import FAKE_RUNNER, KIT_EXTENSION
from enginebay_ray.door import load_ray
from enginebay_ray.executor import RayExecutor
from enginebay_ray.held import HeldProcesses
from enginebay_ray.placement import Placement
from support import telling_runner
from support.fake_engines import Installed, install
from support.marks import install_marks, with_marks

OPTIONS: dict[str, Any] = {"address": "auto", "env": ["PYTHONPATH"], "gpus_per_worker": 0}
Drive = Callable[..., ExecutorDriver]

pytestmark = pytest.mark.usefixtures("two_nodes")


class TestRay(ExecutorSuite):
    """What every executor keeps: the kit itself. What starts actors for each test is in the soak, see conftest.py."""

    name = "ray"
    options: ClassVar[Mapping[str, Any]] = OPTIONS
    patience = 60.0
    tells_last_lines = True


@pytest.fixture
def drive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Drive]:
    """Makes executors of two ranks over the telling runner, and stops them."""
    site = tmp_path / "site"
    site.mkdir()
    shutil.copy(telling_runner.__file__, site / "telling_runner.py")
    offer(site, monkeypatch, Kind.RUNNER, FAKE_RUNNER, "telling_runner")
    offer(site, monkeypatch, Kind.WORKER_EXTENSION, KIT_EXTENSION, "enginebay.testing.fakes")
    made: list[ExecutorDriver] = []

    def drive(**options: Any) -> ExecutorDriver:
        driver = ExecutorDriver(
            "ray", tmp_path / f"driver{len(made)}", options={**OPTIONS, **options}, patience=60.0, world_size=2
        )
        made.append(driver)
        return driver

    yield drive
    for driver in made:
        driver.gate.touch()
        driver.stop()
        driver.wait_until_gone()
        driver.run_folder.close()


def told(driver: ExecutorDriver) -> list[dict[str, Any]]:
    """What the two runners have written down."""
    for call in START_CALLS[:3]:
        driver.calls(call)
    return [json.loads(Path(f"{driver.closed}.{rank}").read_text()) for rank in (0, 1)]


def wait_until_all_is_free() -> None:
    """Ray takes a place back in its own time."""
    ray = load_ray()
    until = time.monotonic() + 60
    while (free := ray.available_resources().get("CPU", 0.0)) != ray.cluster_resources()["CPU"]:
        assert time.monotonic() < until, f"CPUs that are free: {free:g}"
        time.sleep(0.02)


def test_ranks_on_two_nodes_speak_to_the_engine_through_tcp(drive: Drive) -> None:  # X16
    driver = drive(strategy="STRICT_SPREAD")
    driver.start()
    ray = load_ray()
    here = ray.util.get_node_ip_address()
    assert [worker.address for worker in driver.workers] == [here, here]
    assert [worker.local_rank for worker in driver.workers] == [0, 0]
    assert [(one["node"], one["local_rank"]) for one in told(driver)] == [(0, 0), (1, 0)]
    for call in START_CALLS[3:]:
        driver.calls(call)
    driver.run_step()
    executor = driver.executor
    assert isinstance(executor, RayExecutor)
    session = executor._session()
    assert session is not None
    assert session._line is not None
    assert session._line.address.startswith(f"tcp://{here}:")
    port = int(session._line.address.rpartition(":")[2])
    bound = [c.laddr.ip for c in psutil.Process().net_connections("tcp") if c.laddr.port == port]
    assert set(bound) == {here}


def test_ranks_on_one_node_use_a_socket_in_the_run_folder(drive: Drive) -> None:
    driver = drive(strategy="STRICT_PACK", resources={"node:__internal_head__": 0.001})  # the engine's own node
    driver.start()
    assert [(worker.address, worker.local_rank) for worker in driver.workers] == [("", 0), ("", 1)]
    assert {worker.space for worker in driver.workers} == {pid_space()}, "by which their ends can be seen here"
    (path,) = driver.run_folder.path().glob("*.sock")
    assert path.stat().st_mode & 0o777 == 0o600
    assert [(one["node"], one["local_rank"]) for one in told(driver)] == [(0, 0), (0, 1)]
    executor = driver.executor
    assert executor is not None
    stacks = executor.stacks(driver.deadline())
    assert sorted(stacks) == [0, 1]
    assert all("serve" in stack for stack in stacks.values())
    driver.stop()
    assert not list(driver.run_folder.path().glob("*.sock"))


def test_bundles_can_be_named_in_a_group_that_exists(drive: Drive) -> None:  # X16
    ray = load_ray()
    group = ray.util.placement_group([{"CPU": 1}] * 3, strategy="SPREAD", name="theirs")
    assert group.wait(30)
    nodes = ray.util.placement_group_table(group)["bundles_to_node_id"]
    driver = drive(placement_group="theirs", bundle_indices=[2, 1])
    driver.start()
    executor = driver.executor
    assert isinstance(executor, RayExecutor)
    session = executor._session()
    assert session is not None
    assert [seat.bundle for seat in session._placement.seats] == [2, 1]
    assert [seat.node.node_id for seat in session._placement.seats] == [nodes[2], nodes[1]]
    driver.stop()
    assert ray.util.placement_group_table(group)["state"] == "CREATED"
    ray.util.remove_placement_group(group)
    with pytest.raises(StartFailed, match="bundle_indices = \\[0, 0\\] names 0 more than once"):
        drive(bundle_indices=[0, 0]).start()
    with pytest.raises(StartFailed, match="placement_group = 'nobodys': "):
        drive(placement_group="nobodys").start()


def test_a_place_that_cannot_be_had_is_told(drive: Drive) -> None:  # X16
    wait_until_all_is_free()  # what the tests before had
    driver = drive(cpus_per_worker=3, strategy="STRICT_PACK")
    driver.patience = 0.5
    with pytest.raises(StartFailed) as caught:
        driver.start()
    driver.patience = 60.0
    said = str(caught.value)
    assert said.startswith("Ray could not place 2 workers of CPU 3 each (strategy STRICT_PACK) before the start's")
    assert said.count("node ") == 2
    assert "free in all: CPU 8." in said
    driver.stop()
    wait_until_all_is_free()


def test_the_environment_travels_and_the_working_directory_does_not(
    drive: Drive, monkeypatch: pytest.MonkeyPatch
) -> None:  # X16
    monkeypatch.setenv("MINE", "of the engine's now")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "a name")
    monkeypatch.setenv("UNNAMED", "stays")
    driver = drive(env=["PYTHONPATH", "MINE"])
    driver.start()
    for one in told(driver):
        assert one["environ"]["MINE"] == "of the engine's now"
        assert one["environ"]["OTEL_SERVICE_NAME"] == "a name"
        assert "UNNAMED" not in one["environ"]
        assert os.getcwd() not in one["path"]
        assert "" not in one["path"]


def test_workers_see_the_devices_that_ray_gave_to_their_node(drive: Drive) -> None:  # X16
    driver = drive(gpus_per_worker=1)
    driver.start()
    one, other = told(driver)
    assert one["environ"]["CUDA_VISIBLE_DEVICES"] == other["environ"]["CUDA_VISIBLE_DEVICES"]
    assert sorted(one["environ"]["CUDA_VISIBLE_DEVICES"].split(",")) == ["0", "1"]
    assert (one["local_rank"], other["local_rank"]) == (0, 1)


def test_a_killed_actor_is_noticed_with_rays_own_words(drive: Drive) -> None:  # X4, X16
    driver = drive()
    driver.start()
    os.kill(driver.workers[1].pid, signal.SIGKILL)
    driver.wait_until(lambda: bool(driver.exits), "the death was not reported")
    (lost,) = driver.exits
    assert lost.rank == 1
    assert "Ray says: Worker unexpectedly exits with a connection error" in lost.reason
    assert driver.executor is not None
    assert "Ray says" in driver.executor.health().detail


def test_workers_end_where_ray_does_not_end_them(drive: Drive, monkeypatch: pytest.MonkeyPatch) -> None:  # X12, X13
    """Ray's server, or the node's part of it, has gone: nobody hears that the actors are no longer needed."""
    driver = drive()
    held, given_back = HeldProcesses.take, list[Placement]()
    monkeypatch.setattr(HeldProcesses, "take", lambda self, info: held(self, info) if info.rank == 0 else None)
    monkeypatch.setattr("enginebay_ray.session.end_actors", lambda actors: None)
    with monkeypatch.context() as deaf:
        deaf.setattr(Placement, "remove", lambda placement: given_back.append(placement))
        driver.start()
        assert driver.own_processes
        os.kill(driver.workers[0].pid, signal.SIGSTOP)  # this one cannot hear that the line is closed
        driver.stop()
        driver.wait_until_gone()
    for placement in given_back:
        placement.remove()
    assert len(given_back) == 1
    assert driver.exits == []


def test_another_cluster_in_the_same_process_is_refused(drive: Drive) -> None:
    with pytest.raises(StartFailed) as caught:
        drive(address="127.0.0.1:1").start()
    assert str(caught.value) == (
        "this process is connected to the Ray cluster at 'auto', and Ray allows one connection to a process: run the "
        "engine on the Ray cluster at '127.0.0.1:1' in another one"
    )


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Installed]:
    for installed in install(tmp_path, monkeypatch):
        monkeypatch.setenv("PYTHONPATH", installed.environ()["PYTHONPATH"])
        yield installed


def test_a_whole_engine_survives_the_death_of_its_worker(
    fake: Installed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # P6, X4
    install_marks(tmp_path / "marks", monkeypatch)
    config = with_marks(fake.config(), mark="seen") | {"executor": {"use": "ray", "options": OPTIONS}}
    with LLM(config) as llm:
        first = llm.generate("say:abcdef", SamplingParams(max_tokens=8))
        before = json.loads(llm.collective_rpc("marks.where")[0])
        worker = psutil.Process(before["pid"])
        assert worker.cmdline()[0] == "ray::RayWorker.serve"
        worker.kill()
        until = time.monotonic() + 60
        while worker.is_running() and time.monotonic() < until:
            time.sleep(0.01)
        second = llm.generate("say:abcdef", SamplingParams(max_tokens=8))
        after = json.loads(llm.collective_rpc("marks.where")[0])
    assert first[0].text == second[0].text == "abcdef"
    assert after == before | {"pid": after["pid"]} == {**after, "mark": "seen", "rank": 0, "runner": "FakeRunner"}
    assert after["pid"] != before["pid"]


LIVES = """
import json, os, sys
from enginebay import LLM, SamplingParams

config = json.loads(sys.argv[1])
print(LLM(config).generate("say:abc", SamplingParams(max_tokens=4))[0].text, flush=True)  # it is dropped
llm = LLM(config)
import ray
print(llm.generate("say:abc", SamplingParams(max_tokens=4))[0].text, flush=True)
ray.shutdown()
llm.close()
print(ray.is_initialized(), flush=True)
llm = LLM(config)  # it is never closed
print(llm.generate("say:abc", SamplingParams(max_tokens=4))[0].text, flush=True)
"""


def test_a_process_that_forgets_its_engine_or_disconnects_ray_under_it(
    fake: Installed, tmp_path: Path
) -> None:  # X13, and the workers' spans are in the engine's trace
    wait_until_all_is_free()
    trace = tmp_path / "trace.jsonl"
    config = {
        **fake.config(),
        "executor": {"use": "ray", "options": OPTIONS},
        "telemetry": {"file": str(trace)},
    }
    done = subprocess.run(
        [sys.executable, "-P", "-c", LIVES, json.dumps(config)],
        env=fake.environ(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "abc\nabc\nFalse\nabc\n"), done.stderr
    wait_until_all_is_free()
    spans = list(read_spans(trace))
    launches = [span for span in spans if span.name == "executor.launch"]
    assert len(launches) in (3, 4)  # an idle engine may have begun to replace the worker that Ray took from it
    for launch in (launches[0], launches[-1]):  # Ray has killed the second one's worker
        (init,) = [span for span in spans if span.parent_id == launch.span_id and span.name == "worker.init"]
        assert init.resource["enginebay.role"] == "worker"
        assert init.attributes["process.pid"] != launch.resource["process.pid"]
        phases = {span.name for span in spans if span.parent_id == init.span_id}
        assert phases >= {"worker.init_device", "worker.load_model", "worker.profile", "worker.warm_up"}


KILLED = """
import json, os, signal, sys
from enginebay import LLM

llm = LLM(json.loads(sys.argv[1]))
pids = [worker.incarnation.pid for worker in llm.health().workers]
for pid in pids:
    os.kill(pid, signal.SIGKILL)
print(json.dumps(pids), flush=True)
llm.close()
"""


def test_workers_that_are_killed_have_told_of_their_start(fake: Installed, tmp_path: Path) -> None:  # O1
    """The spans of every worker's start are out before the engine stands, and not only at a good end."""
    wait_until_all_is_free()
    trace = tmp_path / "trace.jsonl"
    config = {
        **fake.config(),
        "executor": {"use": "ray", "options": OPTIONS},
        "parallel": {"data_parallel_size": 2},
        "telemetry": {"file": str(trace)},
    }
    done = subprocess.run(
        [sys.executable, "-P", "-c", KILLED, json.dumps(config)],
        env=fake.environ(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    wait_until_all_is_free()
    inits = [span for span in read_spans(trace) if span.name == "worker.init"]
    told = {span.attributes["process.pid"]: span.trace_id for span in inits}
    pids = json.loads(done.stdout)
    assert set(pids) <= set(told)  # others may have been started in their place
    assert (len(pids), len({told[pid] for pid in pids})) == (2, 1)
