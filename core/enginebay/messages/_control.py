"""What a front end asks of a running engine beside requests: a closed union of typed commands, and their answer."""

from __future__ import annotations

from msgspec import Struct, field

from enginebay.messages._status import EngineHealth


class ReadStatus(Struct, frozen=True, kw_only=True, tag="read_status"):
    """How the engine stands: answered at once, also while a step runs. Allowed to the role observe."""


class Drain(Struct, frozen=True, kw_only=True, tag="drain"):
    """Refuse new requests (retryable) and answer when the running ones have ended, or after ``timeout`` seconds.

    Requests are refused until ``Resume``, also after the answer.
    """

    timeout: float | None = None


class Resume(Struct, frozen=True, kw_only=True, tag="resume"):
    """Take requests again after a ``Drain``."""


class StopEngine(Struct, frozen=True, kw_only=True, tag="stop_engine"):
    """End the engine; unfinished requests are aborted."""


class Sleep(Struct, frozen=True, kw_only=True, tag="sleep"):
    """Give device memory back. Level 1 keeps the weights in host memory, level 2 drops them; the KV cache goes in both.

    Refused while requests run.
    """

    level: int = 1


class WakeUp(Struct, frozen=True, kw_only=True, tag="wake_up"):
    """Take the memory again; ``tags`` of "weights" and "kv_cache", none: both. After level 2, weights come anew."""

    tags: tuple[str, ...] = ()


class UpdateWeights(Struct, frozen=True, kw_only=True, tag="update_weights"):
    """Read other weights of the same shapes from ``path``, a folder that the workers can read, as ``version``.

    Refused while requests run; what was cached of the old weights is dropped.
    """

    path: str
    version: str = ""


class ResetPrefixCache(Struct, frozen=True, kw_only=True, tag="reset_prefix_cache"):
    """Forget what the KV cache holds of texts that were. Refused, and nothing is changed, while blocks are in use."""


class CallWorkers(Struct, frozen=True, kw_only=True, tag="call_workers"):
    """Call a method of a worker extension that the config names: ``method`` is "extension.method".

    ``payload`` goes to every rank, or ``per_rank`` one to each. Answered with one ``bytes`` per rank.
    """

    method: str
    payload: bytes = b""
    per_rank: tuple[bytes, ...] | None = None
    timeout: float | None = None


class StartProfile(Struct, frozen=True, kw_only=True, tag="start_profile"):
    """Record what the workers do, until ``StopProfile``, into files of this folder, one for each rank."""

    folder: str


class StopProfile(Struct, frozen=True, kw_only=True, tag="stop_profile"):
    """Write what was recorded; answered with the files' paths."""


class Swap(Struct, frozen=True, kw_only=True, tag="swap"):
    """Put other plugins in the place of those that run, with what runs; "" leaves one as it is.

    ``sets`` are ``section.key=value`` of the sections [scheduler], [runner] and [executor], for options above all.
    ``exclusive``: new workers are started when the old ones are gone, also where both would have room. Answered with
    what is in force. What cannot start, or does not fit what runs, is refused, and the old one goes on.
    """

    scheduler: str = ""
    runner: str = ""
    executor: str = ""
    sets: tuple[str, ...] = ()
    exclusive: bool = False


class Scale(Struct, frozen=True, kw_only=True, tag="scale"):
    """Spread each copy of the model over so many workers; None leaves a size as it is. Otherwise as ``Swap``.

    ``data_parallel_size``, which is asked for alone: have so many copies. Those that are missing are started beside
    those that run, which serve meanwhile, and have their weights from one of them.
    """

    tensor_parallel_size: int | None = None
    pipeline_parallel_size: int | None = None
    data_parallel_size: int | None = None
    exclusive: bool = False


class RestartWorkers(Struct, frozen=True, kw_only=True, tag="restart_workers"):
    """Start the workers anew, one group after the other; requests wait, and lose nothing. No restart is counted."""


Control = (
    ReadStatus
    | Drain
    | Resume
    | StopEngine
    | Sleep
    | WakeUp
    | UpdateWeights
    | ResetPrefixCache
    | CallWorkers
    | StartProfile
    | StopProfile
    | Swap
    | Scale
    | RestartWorkers
)


class ControlDone(Struct, frozen=True, kw_only=True, tag="control_done"):
    """It was done. ``values`` as the command says, ``facts`` what is worth printing, by name; ``health``: of
    ``ReadStatus``."""

    values: tuple[bytes, ...] = ()
    facts: dict[str, str] = field(default_factory=dict)
    health: EngineHealth | None = None
