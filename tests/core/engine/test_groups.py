"""Whole engines of several groups: the same answers as of one, and a start that fails leaves none of them."""

from __future__ import annotations

import threading
from typing import Any, Literal

import pytest

from enginebay import LLM, SamplingParams
from enginebay.config import load
from enginebay.engine.front.front import Front
from enginebay.engine.replicas.replicas import ReplicaSet
from enginebay.engine.startup.bringup import BringUp
from enginebay.engine.startup.groups import group_plan
from enginebay.engine.startup.plan import Plan, plan
from enginebay.errors import CapabilityError, EnginebayError, EngineDead, WorkerFailed, WorkerLost
from enginebay.messages import FinishReason
from enginebay.plugins import PluginHost
from enginebay.runtime import Entropy, system_runtime
from support.fake_engines import Installed

TWO = "parallel.data_parallel_size=2"
PROMPTS = [f"prompt number {i}" for i in range(12)]
PARAMS = SamplingParams(max_tokens=6, ignore_eos=True)


def planned(fake: Installed, *sets: str, **options: Any) -> Plan:
    return plan(load(fake.config(**options), sets=sets, environ={}), PluginHost())


def test_two_groups_answer_as_one_does(fake: Installed) -> None:
    with LLM(fake.config()) as llm:
        expected = [answer.token_ids for answer in llm.generate(PROMPTS, PARAMS)]
    with LLM(fake.config(), sets=[TWO]) as llm:
        assert [answer.token_ids for answer in llm.generate(PROMPTS, PARAMS)] == expected
        assert (
            "".join(delta.text for delta in llm.stream(PROMPTS[0], PARAMS)) == llm.generate(PROMPTS[0], PARAMS)[0].text
        )
        stats = llm.stats()
        assert stats.finished == len(PROMPTS) + 2
        assert stats.scheduler.num_blocks == stats.scheduler.num_free_blocks == 512
        port = llm._front.client
        assert isinstance(port, ReplicaSet)
        assert all(client.stats().finished > 0 for client in port._clients)
        assert llm.in_force["groups"] == "2"


def test_each_group_has_its_own_place(fake: Installed) -> None:
    made = planned(fake, "parallel.data_parallel_size=3")
    worlds = [group_plan(made, index).world for index in range(3)]
    assert [world.data_parallel_index for world in worlds] == [0, 1, 2]
    assert [world.data_parallel_rank_local for world in worlds] == [0, 1, 2]
    assert {world.data_parallel_size for world in worlds} == {3}


def test_what_is_in_force_names_the_groups(fake: Installed) -> None:
    [groups] = [item for item in planned(fake, TWO).in_force if item.name == "groups"]
    assert (groups.value, groups.why) == ("2", "copies of the model, of 1 worker each; --set")
    assert not [item for item in planned(fake).in_force if item.name == "groups"]


def test_devices_are_named_for_every_group(fake: Installed) -> None:
    with pytest.raises(CapabilityError) as caught:
        planned(fake, TWO, "device.ids=[0]")
    assert str(caught.value) == "[device] ids = [0] names 1, and [parallel] asks for 2: one for each worker."
    planned(fake, TWO, "device.ids=[0,1]")


def test_observers_hear_of_one_engine(fake: Installed, monkeypatch: pytest.MonkeyPatch) -> None:
    host, told = PluginHost(), []
    monkeypatch.setattr(host.hooks, "engine_started", lambda in_force: told.append(("started", dict(in_force))))
    monkeypatch.setattr(host.hooks, "engine_stopped", lambda: told.append(("stopped", {})))
    monkeypatch.setattr(host.hooks, "worker_started", lambda worker: told.append(("worker", {})))
    front = Front.open(fake.config(), [TWO], host=host)
    in_force = front.in_force
    front.close()
    assert [what for what, _ in told] == ["worker", "worker", "started", "stopped"]
    assert told[2][1] == in_force


def test_groups_are_started_at_the_same_time(fake: Installed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are in the same phase before either leaves it."""
    together = threading.Barrier(2)
    call = BringUp._call
    phases: list[str] = []

    def meet(self: BringUp, asked: Any, *rest: Any) -> Any:
        together.wait(30)
        phases.append(type(asked).__name__)
        return call(self, asked, *rest)

    monkeypatch.setattr(BringUp, "_call", meet)
    Front.open(fake.config(), [TWO]).close()
    assert phases.count("LoadModel") == 2


def test_a_start_that_fails_has_one_cause_and_leaves_no_group(fake: Installed) -> None:  # X14
    with pytest.raises(WorkerFailed, match="failed in load_model: ValueError: asked to fail in load_model") as caught:
        Front.open(fake.config(fail="load_model"), [TWO])
    assert caught.value.exit_code == 3
    [note] = caught.value.__notes__
    assert note in {f"it was the start of group {index} of 2; the others were stopped" for index in range(2)}


def test_one_group_that_fails_ends_the_others(fake: Installed, monkeypatch: pytest.MonkeyPatch) -> None:  # X14
    """The other has loaded already, or is in the middle of it: it is stopped under its call."""
    call = BringUp._call
    others: list[BaseException] = []
    loading = threading.Event()

    def one_fails(self: BringUp, asked: Any, *rest: Any) -> Any:
        if type(asked).__name__ != "LoadModel":
            return call(self, asked, *rest)
        if threading.current_thread().name == "enginebay-start-1":
            assert loading.wait(30)
            raise OSError("the disk is gone")
        loading.set()
        while True:
            try:
                call(self, asked, *rest)
            except BaseException as error:
                if "came a second time" not in str(error):
                    others.append(error)
                    raise

    monkeypatch.setattr(BringUp, "_call", one_fails)
    with pytest.raises(OSError, match="the disk is gone"):
        Front.open(fake.config(), [TWO])
    assert len(others) == 1


def test_an_interrupted_start_leaves_no_group(fake: Installed, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = system_runtime(seed=1)
    wait = type(runtime).wait
    main = threading.get_ident()
    once: list[int] = []

    def ctrl_c(self: Any, future: Any, deadline: Any) -> Any:
        if threading.get_ident() == main and not once:
            once.append(1)
            raise KeyboardInterrupt
        return wait(self, future, deadline)

    monkeypatch.setattr(type(runtime), "wait", ctrl_c)
    with pytest.raises(KeyboardInterrupt):
        Front.open(fake.config(), [TWO], runtime=runtime)


def test_branches_of_entropy_are_independent_and_repeatable() -> None:
    def draws(name: str) -> list[int]:
        return [Entropy(7).branch(name).stream("seeds").getrandbits(32) for _ in range(2)]

    assert draws("group 0") == draws("group 0")
    assert draws("group 0")[0] == draws("group 0")[1] != draws("group 1")[0]
    assert Entropy(None).branch("a").stream("b").getrandbits(64) != Entropy(None).branch("a").stream("b").getrandbits(
        64
    )


def test_a_group_that_cannot_have_its_weights_leaves_the_engine_as_it_was(fake: Installed) -> None:
    with LLM(fake.config()) as llm:
        with pytest.raises(CapabilityError, match="runner 'fake' does not send its weights"):
            llm.grow()
        port = llm._front.client
        assert isinstance(port, ReplicaSet)
        assert port.loads == (0,)
        assert len(llm.generate(PROMPTS, PARAMS)) == len(PROMPTS)


@pytest.mark.parametrize("errors", ["raise", "return"])
def test_the_end_of_a_group_is_told_beside_the_others_answers(
    fake: Installed, monkeypatch: pytest.MonkeyPatch, errors: Literal["raise", "return"]
) -> None:  # E4
    with LLM(fake.config(step_seconds=0.02), sets=[TWO]) as llm:
        port = llm._front.client
        assert isinstance(port, ReplicaSet)
        lost = port._cores[1]

        def die() -> None:
            if lost.stats().unfinished:
                raise EngineDead("the engine stopped: its executor broke")

        monkeypatch.setattr(lost._execution, "check_alive", die)
        if errors == "raise":
            with pytest.raises(EnginebayError, match="its executor broke"):
                llm.generate(PROMPTS, PARAMS)
        else:
            several = SamplingParams(max_tokens=6, ignore_eos=True, n=2, temperature=1.0)
            answers = llm.generate(PROMPTS, several, errors="return")
            failed = [answer for answer in answers if answer.error is not None]
            assert 0 < len(failed) < len(PROMPTS)
            for answer in failed:
                assert "its executor broke" in str(answer.error)
                assert [choice.finish_reason for choice in answer.choices] == [FinishReason.ERROR] * 2
            assert all(len(choice.token_ids) == 6 for one in answers if one not in failed for choice in one.choices)
        assert llm.generate("say:still here", errors=errors)[0].text == "still here"
        monkeypatch.setattr(port._cores[0]._execution, "check_alive", lambda: _raise(WorkerLost("the last one")))
        with pytest.raises(EnginebayError, match="the last one"):
            llm.generate(PROMPTS, PARAMS, errors=errors)


def _raise(error: Exception) -> None:
    raise error
