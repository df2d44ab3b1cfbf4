"""What the engine asks of a worker beside its start and its steps: rest, other weights, extensions, profiles."""

from __future__ import annotations

from msgspec import Struct


class SleepWorker(Struct, frozen=True, kw_only=True, tag="sleep_worker"):
    """Give device memory back. Level 1 keeps the weights in host memory, level 2 drops them; the KV cache goes."""

    level: int = 1


class WakeWorker(Struct, frozen=True, kw_only=True, tag="wake_worker"):
    """Take back what sleep gave away: ``tags`` of "weights" (after level 1) and "kv_cache" (whose content is lost)."""

    tags: tuple[str, ...] = ("weights", "kv_cache")


class StartWeightUpdate(Struct, frozen=True, kw_only=True, tag="start_weight_update"):
    """Other weights of the same model come: all of them from ``path``, or, where it is "", in chunks.

    Nothing changes before ``FinishWeightUpdate``.
    """

    path: str = ""


class TensorPiece(Struct, frozen=True, kw_only=True):
    """A tensor's bytes from ``offset`` on,: row-major, little-endian, in the checkpoint's own terms.

    ``name`` is the one that the model's file would have, ``dtype`` "float32", "bfloat16" or "float16", and ``shape``
    that of the whole tensor, whatever part of it this piece is.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: bytes
    offset: int = 0


class WeightsChunk(Struct, frozen=True, kw_only=True, tag="weights_chunk"):
    """Some tensors of a weight update, in pieces; a tensor's pieces come in order."""

    pieces: tuple[TensorPiece, ...]


class FinishWeightUpdate(Struct, frozen=True, kw_only=True, tag="finish_weight_update"):
    """The new weights count from here on, as ``version``; a worker that lacks some keeps the old ones, and says so."""

    version: str = ""


class AbortWeightUpdate(Struct, frozen=True, kw_only=True, tag="abort_weight_update"):
    """Forget what came of a weight update; without one, nothing happens."""


class SendWeights(Struct, frozen=True, kw_only=True, tag="send_weights"):
    """Give this rank's weights to the worker of the same rank that was asked to load from the peer at ``rendezvous``.

    ``rendezvous``: ``file:///folder/name``; rank r meets its peer at that name with ``.r`` behind it.
    """

    rendezvous: str


class CallExtension(Struct, frozen=True, kw_only=True, tag="call_extension"):
    """Call a declared method of a worker extension: ``method`` is "extension.method"."""

    method: str
    payload: bytes = b""


class StartWorkerProfile(Struct, frozen=True, kw_only=True, tag="start_worker_profile"):
    """Record what this worker does, until ``StopWorkerProfile``, into a file of this folder."""

    folder: str


class StopWorkerProfile(Struct, frozen=True, kw_only=True, tag="stop_worker_profile"):
    """Write what was recorded; answered with ``ProfileWritten``."""


LifeCall = (
    SleepWorker
    | WakeWorker
    | StartWeightUpdate
    | WeightsChunk
    | FinishWeightUpdate
    | AbortWeightUpdate
    | SendWeights
    | CallExtension
    | StartWorkerProfile
    | StopWorkerProfile
)


class ExtensionAnswered(Struct, frozen=True, kw_only=True, tag="extension_answered"):
    """The reply to ``call_extension``: what the method returned."""

    value: bytes = b""


class ProfileWritten(Struct, frozen=True, kw_only=True, tag="profile_written"):
    """The reply to ``stop_worker_profile``: the file, on the worker's own host."""

    path: str


class WeightsSent(Struct, frozen=True, kw_only=True, tag="weights_sent"):
    """The reply to ``send_weights``: how much went to the peer, and one checksum over all of it (hex)."""

    num_bytes: int
    checksum: str


LifeResult = ExtensionAnswered | ProfileWritten | WeightsSent
