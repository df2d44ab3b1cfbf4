"""A failure that came of another rank is told as such, whatever class it was raised as."""

from __future__ import annotations

from types import ModuleType

import pytest

from enginebay.errors import ModelError, StartFailed
from enginebay.worker.failure import describe_failure

COLLECTIVE = ModuleType("torch.distributed.strange")
exec("def all_reduce(error):\n    raise error", COLLECTIVE.__dict__)  # a frame of that module


def raised(error: Exception, around: Exception | None = None) -> BaseException:
    try:
        try:
            COLLECTIVE.all_reduce(error)
        except Exception as inner:
            if around is None:
                raise
            raise around from inner
    except Exception as outer:
        return outer
    raise AssertionError("it raises")


@pytest.mark.parametrize(
    ("error", "around", "kind"),
    [
        (RuntimeError("closed by peer"), None, "WorkerFailed"),
        (RuntimeError("closed by peer"), StartFailed("rank 0 did not meet the others"), "WorkerFailed"),
        (ValueError("no such group"), None, ""),
        (ValueError("no such group"), ModelError("torn"), "ModelError"),
    ],
)
def test_what_a_collective_raised(error: Exception, around: Exception | None, kind: str) -> None:  # X14
    assert describe_failure(raised(error, around), phase="load_model", rank=0).kind == kind


def test_an_error_of_the_runners_own() -> None:
    assert describe_failure(RuntimeError("mine"), phase="load_model", rank=0).kind == ""
    assert describe_failure(ModelError("torn"), phase="load_model", rank=0).kind == "ModelError"
