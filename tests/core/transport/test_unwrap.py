"""From replies to results, and from a failure to the exception with the right exit code."""

from __future__ import annotations

import pytest

from enginebay import errors
from enginebay.errors import EnginebayError, ModelError, OutOfMemory, WorkerFailed, WorkerHung, WorkerLost
from enginebay.messages import Ack, MemoryAvailable, RankReply, Replies, WorkerFailure
from enginebay.transport import DamagedMessage, encode, failure_error, raise_failures, results_of, unwrap

FAILURE = WorkerFailure(
    phase="load_model",
    error_type="ValueError",
    message="bad weights",
    traceback="Traceback …",
    rank=1,
    host="node-a",
    pid=42,
)


def replies(*each: bytes | WorkerFailure) -> Replies:
    return Replies(
        generation=0,
        call_id=1,
        replies=tuple(
            RankReply(rank=rank, payload=one) if isinstance(one, bytes) else RankReply(rank=rank, failure=one)
            for rank, one in enumerate(each)
        ),
    )


def test_results_in_rank_order() -> None:
    assert unwrap(replies(encode(Ack()), encode(MemoryAvailable(kv_cache_bytes=5)))) == [
        Ack(),
        MemoryAvailable(kv_cache_bytes=5),
    ]
    assert unwrap(replies()) == []


@pytest.mark.parametrize("as_payload", [True, False])
def test_a_failure_is_raised_with_rank_host_pid_and_phase(as_payload: bool) -> None:  # X2
    with pytest.raises(WorkerFailed) as caught:
        unwrap(replies(encode(Ack()), encode(FAILURE) if as_payload else FAILURE))
    assert str(caught.value) == "rank 1 (pid 42, host node-a) failed in load_model: ValueError: bad weights"
    assert caught.value.remote_traceback == "Traceback …"
    assert caught.value.exit_code == 3


def test_the_other_ranks_failures_are_notes() -> None:
    first = WorkerFailure(phase="load_model", error_type="OSError", message="disk", rank=0)
    with pytest.raises(WorkerFailed, match=r"^rank 0 failed in load_model: OSError: disk\n") as caught:
        unwrap(replies(first, FAILURE))
    assert caught.value.__notes__ == ["rank 1 (pid 42, host node-a) failed in load_model: ValueError: bad weights"]


@pytest.mark.parametrize(
    ("kind", "cls", "code"), [("ModelError", ModelError, 2), ("OutOfMemory", OutOfMemory, 3), ("WorkerLost", None, 4)]
)
def test_our_own_errors_come_back_as_themselves(kind: str, cls: type[EnginebayError] | None, code: int) -> None:
    error = failure_error(WorkerFailure(phase="load_model", error_type="X", message="say so", kind=kind, traceback="T"))
    assert type(error) is (cls or getattr(errors, kind))
    assert str(error) == "say so"
    assert error.exit_code == code
    assert error.__notes__ == ["on rank 0, in load_model"]
    assert error.__dict__["remote_traceback"] == "T"


def test_every_error_of_ours_has_an_answer() -> None:
    for name in errors.__all__:
        error = failure_error(WorkerFailure(phase="p", error_type=name, message="m", kind=name))
        assert isinstance(error, EnginebayError)
        assert "m" in str(error)


@pytest.mark.parametrize("kind", ["", "did_you_mean", "Exception", "os", "__doc__", "RequestFailed"])
def test_any_other_kind_is_a_failed_worker(kind: str) -> None:
    error = failure_error(WorkerFailure(phase="p", error_type="E", message="m", kind=kind))
    assert type(error) is WorkerFailed
    assert str(error) == "rank 0 failed in p: E: m"


def failure(rank: int, kind: str = "", message: str = "m", error_type: str = "") -> WorkerFailure:
    """One of ``load_model``."""
    return WorkerFailure(
        phase="load_model", error_type=error_type or kind or "E", message=message, kind=kind, rank=rank,
        traceback=f"Traceback of rank {rank}", pid=10 + rank, host="h",
    )  # fmt: skip


def caught(*each: bytes | WorkerFailure) -> EnginebayError:
    with pytest.raises(EnginebayError) as found:
        unwrap(replies(*each))
    return found.value


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_what_every_rank_reports_alike_keeps_its_class(ranks: int) -> None:  # X14
    error = caught(*[failure(rank, "ModelError", "the weights are torn") for rank in range(ranks)])
    assert (type(error), str(error), error.exit_code) == (ModelError, "the weights are torn", 2)
    assert error.__dict__["remote_traceback"] == "Traceback of rank 0"
    assert len(error.__notes__) == ranks


@pytest.mark.parametrize("kind", ["ModelError", "OutOfMemory", "StartFailed", "CapabilityError", "PluginBroken", ""])
def test_what_one_rank_of_several_reports_is_that_workers(kind: str) -> None:  # X14
    error = caught(encode(Ack()), failure(1, kind, "torn"), encode(Ack()))
    assert isinstance(error, WorkerFailed)
    assert str(error) == f"rank 1 (pid 11, host h) failed in load_model: {kind or 'E'}: torn"
    assert (error.exit_code, error.remote_traceback) == (3, "Traceback of rank 1")


def test_ranks_that_differ_have_failed_each_for_itself() -> None:  # X14
    error = caught(failure(0, "ModelError", "a.safetensors is torn"), failure(1, "ModelError", "b.safetensors is torn"))
    assert type(error) is WorkerFailed
    assert str(error) == "rank 0 (pid 10, host h) failed in load_model: ModelError: a.safetensors is torn"
    assert error.__notes__ == ["rank 1 (pid 11, host h) failed in load_model: ModelError: b.safetensors is torn"]


@pytest.mark.parametrize(
    ("kinds", "root"),
    [
        (["WorkerFailed", "ModelError"], 1),  # rank 0 waited for rank 1 in a collective
        (["WorkerFailed", "", "WorkerFailed"], 1),
        (["EngineDead", "ValueError"], 1),
        (["WorkerFailed", "WorkerLost"], 1),
        (["ModelError", "WorkerHung", "WorkerLost"], 2),
        (["ModelError", "OutOfMemory"], 0),
    ],
)
def test_the_cause_is_named_first_and_what_followed_from_it_in_notes(kinds: list[str], root: int) -> None:  # X14
    each = [failure(rank, kind, f"of {rank}") for rank, kind in enumerate(kinds)]
    error = caught(*each)
    lost = kinds[root] == "WorkerLost"
    assert error.exit_code == (4 if lost else 3)
    assert str(error).endswith(f"of {root}")
    own, notes = [f"on rank {root} (pid {10 + root}, host h), in load_model"] if lost else [], error.__notes__
    assert notes[: len(own)] == own
    assert sorted(notes[len(own) :]) == [
        f"rank {rank} (pid {10 + rank}, host h) failed in load_model: {kind or 'E'}: of {rank}"
        for rank, kind in enumerate(kinds)
        if rank != root
    ]


def test_a_lost_rank_keeps_its_class_beside_others() -> None:  # X4: recovery decides on it
    assert type(caught(encode(Ack()), failure(1, "WorkerLost"))) is WorkerLost
    assert type(caught(encode(Ack()), failure(1, "WorkerHung"))) is WorkerHung


def test_signal_and_log_lines_are_told() -> None:
    failure = WorkerFailure(
        phase="p", error_type="Died", message="gone", rank=2, signal=9, last_log_lines=("one", "two")
    )
    assert str(failure_error(failure)) == "rank 2 failed in p: Died: gone (signal 9); last log lines: one | two"


def test_results_as_data() -> None:
    assert results_of(replies(encode(Ack()), FAILURE)) == [Ack(), FAILURE]
    raise_failures([Ack(), None])
    with pytest.raises(WorkerFailed):
        raise_failures([Ack(), FAILURE])


def test_a_reply_that_cannot_be_read() -> None:
    with pytest.raises(DamagedMessage, match="result"):
        unwrap(replies(b"\xc1"))
