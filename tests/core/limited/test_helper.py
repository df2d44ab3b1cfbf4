"""The limited process: it dies alone, comes back, and outlives nobody."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from enginebay.limited import Helper, HelperFailed, OverLimit, _helper
from enginebay.limited._serve import _LAST_MOMENT
from support.forks import in_a_fork

ASK: dict[str, Any] = {"messages": [{"content": "hi"}], "now": "2024-07-26", "tokens": {}, "most": 100}
ASK["add_generation_prompt"] = True
SPIN = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"


def _make(seconds: float = 60.0, memory: int = 64 << 20, module: str = "enginebay.limited._templates") -> Helper:
    return Helper(module, memory=memory, seconds=seconds, max_reply=10_000)


def _ask(source: str) -> dict[str, Any]:
    return {"source": source, **ASK}


def _until(happened: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


@pytest.fixture
def helper() -> Iterator[Helper]:
    made = _make()
    yield made
    made.close()


def _refusal(helper: Helper, source: str) -> str:
    with pytest.raises(HelperFailed) as caught:
        helper.call(_ask(source))
    return str(caught.value)


def test_one_process_answers_all_calls(helper: Helper) -> None:
    assert helper.pid is None  # it starts on the first call
    assert helper.call(_ask("{{ messages[0].content }}")) == {"text": "hi"}
    pid = helper.pid
    assert helper.call(_ask("b")) == {"text": "b"}
    assert helper.pid == pid


def test_lone_surrogates_cross(helper: Helper) -> None:
    request = _ask("{{ messages[0].content }}") | {"messages": [{"content": "\ud83d\udc4d\udfff🦜\0"}]}
    assert helper.call(request) == {"text": "\ud83d\udc4d\udfff🦜\0"}


def test_a_call_over_its_time() -> None:
    helper = _make(seconds=0.2)
    helper.call(_ask("a"))
    assert _refusal(helper, SPIN) == "took longer than 0.2 s and was stopped"
    assert helper.pid is None
    assert helper.call(_ask("b")) == {"text": "b"}
    helper.close()


def test_a_call_over_its_memory(helper: Helper) -> None:
    assert (
        _refusal(helper, "{{ ('a' * 9000000) | replace('a', 'b' * 100) }}")
        == "needs more than the 64 MiB that it may take"
    )
    assert helper.call(_ask("b")) == {"text": "b"}


def test_an_answer_over_its_size(helper: Helper) -> None:
    assert helper.call(_ask("{{ 'a' * 200 }}")) == {"failed": "it wrote 200 characters, and at most 100 are taken"}
    too_large = _ask("{{ 'a' * 20000 }}") | {"most": 10**6}
    with pytest.raises(OverLimit, match=r"^gave an answer of more than 10000 bytes, and was stopped$"):
        helper.call(too_large)


def test_a_message_over_its_memory(helper: Helper) -> None:
    too_large = _ask("{{ messages[0].content }}") | {"messages": [{"content": "a" * 200_000_000}]}
    with pytest.raises(OverLimit, match=r"^needs more than the 64 MiB that it may take$"):
        helper.call(too_large)
    assert helper.call(_ask("b")) == {"text": "b"}


def test_a_process_that_waits_for_longer_than_a_call_may_take() -> None:
    helper = _make(seconds=0.5)
    assert helper.call(_ask("a")) == {"text": "a"}
    pid = helper.pid
    time.sleep(0.5 + _LAST_MOMENT + 0.3)
    assert helper.call(_ask("b")) == {"text": "b"}
    assert helper.pid == pid
    helper.close()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_process_that_is_killed_while_it_works(helper: Helper, number: signal.Signals) -> None:
    helper.call(_ask("a"))
    assert helper.pid is not None
    timer = threading.Timer(0.3, os.kill, (helper.pid, number))
    timer.start()
    assert _refusal(helper, SPIN).startswith(f"was killed by {number.name}")
    timer.join()
    assert helper.call(_ask("b")) == {"text": "b"}


def test_shut_ends_a_call_that_is_under_way_and_all_later_ones(helper: Helper) -> None:
    helper.call(_ask("a"))
    timer = threading.Timer(0.3, helper.shut)
    timer.start()
    assert _refusal(helper, SPIN).startswith("was killed by SIGKILL")
    timer.join()
    assert helper.is_shut
    for _ in range(2):
        assert _refusal(helper, "b") == "could not be started: it was shut"
    assert helper.pid is None


def test_shut_while_it_starts(helper: Helper, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever comes first, the other one sees it."""
    made = _helper.Child

    def starts(argv: list[str]) -> _helper.Child:
        child = made(argv)
        helper.shut()  # it is not known yet
        return child

    monkeypatch.setattr(_helper, "Child", starts)
    assert _refusal(helper, "b").startswith("could not be started: it was killed by SIGKILL")
    assert helper.pid is None


def test_a_process_that_died_between_two_calls(helper: Helper) -> None:
    helper.call(_ask("a"))
    assert helper.pid is not None
    os.kill(helper.pid, signal.SIGKILL)
    _until(lambda: helper.pid is None or psutil.Process(helper.pid).status() == psutil.STATUS_ZOMBIE)
    assert helper.call(_ask("b")) == {"text": "b"}


def test_a_process_that_does_not_start() -> None:
    helper = _make(module="enginebay.limited.no_such_program")
    with pytest.raises(HelperFailed) as caught:
        helper.call({})
    assert str(caught.value).startswith("could not be started: it ended with code 1: ")
    assert str(caught.value).endswith("No module named enginebay.limited.no_such_program")


def test_it_ends_with_close_and_with_its_owner() -> None:
    helper = _make()
    helper.call(_ask("a"))
    pid = helper.pid
    assert pid is not None
    helper.close()
    helper.close()
    assert not psutil.pid_exists(pid)
    helper.call(_ask("a"))
    pid = helper.pid
    assert pid is not None
    del helper
    gc.collect()
    assert not psutil.pid_exists(pid)


def test_calls_of_many_threads_do_not_mix(helper: Helper) -> None:
    wrong: list[str] = []

    def ask(name: str) -> None:
        for number in range(50):
            if helper.call(_ask(f"{name}{number}")) != {"text": f"{name}{number}"}:
                wrong.append(f"{name}{number}")

    threads = [threading.Thread(target=ask, args=(name,)) for name in "abcdefgh"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_it_outlives_the_thread_that_started_it(helper: Helper) -> None:
    thread = threading.Thread(target=helper.call, args=(_ask("a"),))
    thread.start()
    thread.join()
    pid = helper.pid
    time.sleep(0.2)  # the kernel's word on the thread's end would have come
    assert helper.call(_ask("b")) == {"text": "b"}
    assert helper.pid == pid


def test_a_forked_process_has_a_child_of_its_own(helper: Helper) -> None:
    helper.call(_ask("a"))
    there, back = os.pipe()

    def child() -> None:
        assert helper.pid is None
        assert helper.call(_ask("theirs")) == {"text": "theirs"}
        os.write(back, str(helper.pid).encode())  # and it ends without a word: its helper dies with it by itself

    status = in_a_fork(child)
    theirs = int(os.read(there, 100))
    os.close(there)
    os.close(back)
    assert status == 0
    assert theirs != helper.pid
    assert helper.call(_ask("ours")) == {"text": "ours"}
    _until(lambda: not psutil.pid_exists(theirs))


def test_it_can_open_nothing_and_knows_no_secrets(helper: Helper, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_KEY", "secret")
    helper.call(_ask("a"))
    process = psutil.Process(helper.pid)
    assert "API_KEY" not in process.environ()
    assert process.num_fds() == 3
    assert Path(f"/proc/{process.pid}/limits").read_text().split("Max open files")[1].split()[:2] == ["3", "3"]


OWNER = """
import sys
from enginebay.limited import Helper
helper = Helper("enginebay.limited._templates", memory=64 << 20, seconds=60.0, max_reply=10_000)
ask = {"messages": [], "now": "2024-07-26", "tokens": {}, "most": 9, "add_generation_prompt": True}
helper.call({"source": "a", **ask})
print(helper.pid, flush=True)
helper.call({"source": sys.argv[1], **ask})
print("waits", flush=True)
sys.stdin.read()
"""


def _owner(source: str) -> tuple[subprocess.Popen[str], psutil.Process]:
    command = [sys.executable, "-P", "-c", OWNER, source]
    owner = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert owner.stdout is not None
    return owner, psutil.Process(int(owner.stdout.readline()))


@pytest.mark.parametrize("source", ["idle", SPIN])
def test_it_dies_with_a_parent_that_is_killed(source: str) -> None:
    owner, child = _owner(source)
    if source == SPIN:  # at work, where it does not see its stdin end
        begun = child.cpu_times().user
        _until(lambda: child.cpu_times().user > begun + 0.3)
    owner.kill()
    owner.communicate()
    child.wait(10)


def test_ctrl_c_is_the_parents_alone() -> None:
    owner, child = _owner("idle")
    assert owner.stdout is not None
    assert owner.stdout.readline() == "waits\n"
    child.send_signal(signal.SIGINT)  # first: it ends with the parent
    os.killpg(owner.pid, signal.SIGINT)
    _, errors = owner.communicate(timeout=20)
    child.wait(10)
    assert errors.count("Traceback") == 1  # the parent's own
    assert "_serve" not in errors


def test_an_interrupt_in_a_call_loses_no_answer(helper: Helper) -> None:
    helper.call(_ask("a"))
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        helper.call(_ask(SPIN))
    timer.join()
    assert helper.call(_ask("b")) == {"text": "b"}


def test_it_starts_and_answers_fast(helper: Helper) -> None:
    helper.call(_ask("{{ messages[0].content }}"))
    times = []
    for _ in range(20):
        start = time.perf_counter()
        helper.call(_ask("{{ messages[0].content }}"))
        times.append(time.perf_counter() - start)
    assert min(times) < 0.002


def test_no_template_library_here() -> None:
    code = "import sys, enginebay.text; sys.exit('jinja2' in sys.modules)"
    assert subprocess.run([sys.executable, "-P", "-c", code], timeout=60).returncode == 0
