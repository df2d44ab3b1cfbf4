"""A worker's life beside its start and its steps: rest, other weights, extensions, profiles; refused out of turn."""

from __future__ import annotations

from enginebay.interfaces import ModelRunner
from enginebay.messages import (
    AbortWeightUpdate,
    Ack,
    CallExtension,
    ExtensionAnswered,
    FinishWeightUpdate,
    LifeCall,
    ProfileWritten,
    Result,
    SendWeights,
    SleepWorker,
    StartWeightUpdate,
    StartWorkerProfile,
    StopWorkerProfile,
    WakeWorker,
    WeightsChunk,
)
from enginebay.worker.profile import Profile
from enginebay.worker.start import WorkerStart

__all__ = ["WorkerLife"]

_WEIGHTS, _CACHE = "weights", "kv_cache"


class WorkerLife:
    """What a worker that has started can be asked. A call that raises has changed nothing, unless the runner did."""

    def __init__(self, start: WorkerStart, rank: int) -> None:
        self._start = start
        self._rank = rank
        self._level = 0
        self._missing: frozenset[str] = frozenset()
        self._updating = False
        self._profile: Profile | None = None

    def do(self, call: LifeCall) -> Result:
        """Do what the call asks. Raises ``RuntimeError`` for one that is out of its turn."""
        match call:
            case SleepWorker():
                self._sleep(call)
            case WakeWorker():
                self._wake(call)
            case StartWeightUpdate():
                self._start_update(call)
            case WeightsChunk():
                self._check_updating("a chunk of weights")
                self._runner.update_weights_chunk(call)
            case FinishWeightUpdate():
                self._finish_update(call)
            case AbortWeightUpdate():
                if self._updating:
                    self._updating = False
                    self._runner.abort_weight_update()
            case SendWeights():
                self.check_can_run("send_weights")
                return self._start.send_weights(call.rendezvous)
            case CallExtension():
                return ExtensionAnswered(value=self._start.extensions.call(call.method, call.payload))
            case StartWorkerProfile():
                if self._profile is not None:
                    raise RuntimeError("a profile is being recorded already: stop it first")
                self._profile = Profile.begin(call.folder, self._rank, self._start.device)
            case StopWorkerProfile():
                profile, self._profile = self._profile, None
                if profile is None:
                    raise RuntimeError("no profile is being recorded: start one first")
                return ProfileWritten(path=profile.end())
        return Ack()

    def check_can_run(self, what: str) -> None:
        """Raise when a step cannot run now."""
        if self._missing:
            without = " and ".join(sorted(self._missing))
            raise RuntimeError(f"{what} came while the worker sleeps (level {self._level}, without {without})")
        if self._updating:
            raise RuntimeError(f"{what} came in the middle of a weight update")

    def close(self) -> None:
        """Drop a recording that nobody asked for any more."""
        profile, self._profile = self._profile, None
        if profile is not None:
            profile.drop()

    @property
    def _runner(self) -> ModelRunner[object]:  # type: ignore[type-var]  # of any options
        return self._start.runner

    def _sleep(self, call: SleepWorker) -> None:
        self.check_can_run("sleep_worker")
        self._runner.sleep(call.level)
        self._level, self._missing = call.level, frozenset({_WEIGHTS, _CACHE})
        self._start.device.empty_cache()

    def _wake(self, call: WakeWorker) -> None:
        tags = self._missing & frozenset(call.tags)
        if _WEIGHTS in tags and self._level > 1:
            raise RuntimeError("wake_worker came for weights that sleep dropped: they come by a weight update")
        if tags:
            self._runner.wake_up(tags)
            self._awake(tags)

    def _awake(self, tags: frozenset[str]) -> None:
        self._missing -= tags
        self._level = self._level if self._missing else 0

    def _start_update(self, call: StartWeightUpdate) -> None:
        if self._updating:
            raise RuntimeError("start_weight_update came in the middle of another one: abort that one first")
        if _WEIGHTS in self._missing and self._level == 1:
            raise RuntimeError("start_weight_update came while the weights are kept aside: wake them up first")
        self._updating = True
        try:
            self._runner.start_weight_update(call)
        except BaseException:
            self._updating = False
            self._runner.abort_weight_update()
            raise

    def _finish_update(self, call: FinishWeightUpdate) -> None:
        self._check_updating("finish_weight_update")
        self._runner.finish_weight_update(call)
        self._updating = False
        self._awake(frozenset({_WEIGHTS}))
        self._start.device.empty_cache()

    def _check_updating(self, what: str) -> None:
        if not self._updating:
            raise RuntimeError(f"{what} came without start_weight_update before it")
