"""A running group lends its weights to one that starts: the one copies them, the other reads no file.

The lender is interrupted between two of its steps, for as long as the transfer takes: it is asked only when all ranks
of the borrower stand ready.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from enginebay.engine.life import Life
from enginebay.errors import CapabilityError, StartFailed
from enginebay.interfaces import Executor, PendingCall, RunnerPlugin
from enginebay.messages import SendWeights, WeightsSent
from enginebay.runtime import Runtime

__all__ = ["Lender", "Loan", "check_lender"]


@dataclass(frozen=True, kw_only=True)
class Lender:
    """A group that runs, whose weights another may have. No control command may reach it meanwhile."""

    executor: Executor[Any]
    life: Life


def check_lender(lender: Lender, runner: RunnerPlugin[Any]) -> None:
    """Raise when it has no weights to lend, or the runner cannot."""
    if not runner.capabilities.send_weights:
        raise CapabilityError(f"runner '{runner.name}' does not send its weights: start the group from the files")
    refusal = lender.life.refusal()
    if refusal is not None and not lender.life.draining:
        raise refusal


class Loan:
    """One transfer, of which every rank has a part with the lender's rank of the same number.

    Whoever waits at the meeting place looks whether it is still there: leaving the ``with`` block ends the waiting.
    What is left there after a failure goes with the borrower's run folder.
    """

    def __init__(self, lender: Lender, borrower: Executor[Any], runtime: Runtime, ranks: Sequence[int]) -> None:
        self._lender = lender
        self._runtime = runtime
        self._ranks = ranks
        number = runtime.entropy.stream("rendezvous").getrandbits(64)
        self._place: Path = borrower.context.run_folder() / f"peer-{number:016x}"
        self._sent: PendingCall | None = None

    @property
    def rendezvous(self) -> str:
        """Where both sides meet."""
        return self._place.as_uri()

    def __enter__(self) -> Self:
        self._place.touch(mode=0o600)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._place.unlink(missing_ok=True)
        if kind is None:  # else somebody may still read there, and would wait for the file to come back
            for rank in self._ranks:
                self._meeting(rank).unlink(missing_ok=True)

    def look(self, deadline: float) -> None:
        """Ask the lender when all ranks of the borrower are there; raises what the lender could not do."""
        if self._sent is None:
            if all(self._meeting(rank).exists() for rank in self._ranks):
                self._sent = self._lender.executor.submit_call(
                    SendWeights(rendezvous=self.rendezvous), deadline=deadline
                )
        elif self._sent.future.done():
            self.settle(deadline)

    def settle(self, deadline: float) -> None:
        """Wait for the lender's word that it has sent everything."""
        if self._sent is None:
            raise StartFailed("the workers say that they have their weights of a peer, which was not asked yet")
        results = self._lender.executor.context.unwrap(self._runtime.wait(self._sent.future, deadline))
        if not all(isinstance(result, WeightsSent) for result in results):
            raise StartFailed("the peer's workers answered send_weights with something else than weights_sent")

    def _meeting(self, rank: int) -> Path:
        return Path(f"{self._place}.{rank}")
