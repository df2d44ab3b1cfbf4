"""From what a program says to commands, and back: what both front ends share of control."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from enginebay.engine.control.tensors import ChunkOfTensors, Command, chunks_of
from enginebay.errors import InvalidRequest
from enginebay.messages import CallWorkers, Control, ControlDone, EngineHealth, StartProfile, UpdateWeights

__all__ = ["call_command", "checked", "health_of", "paths_of", "profile_command", "tensor_commands", "update_command"]

Tensors = Iterable[tuple[str, Any]]


def checked(command: Command) -> Command:
    """The command, whose fields a program may have given any values. Raises ``InvalidRequest`` unless they can be sent.

    It is the same for an engine in this process: what another's service would drop must not reach its thread.
    """
    if isinstance(command, Control):
        try:
            msgspec.convert(msgspec.to_builtins(command, builtin_types=(bytes,)), type(command))
            msgspec.msgpack.encode(command)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise InvalidRequest(f"{command.__struct_config__.tag} cannot be asked so: {error}") from None
    return command


def update_command(
    path: str | Path | None, tensors: Tensors | None, per_rank: Mapping[int, Tensors] | None, version: str
) -> UpdateWeights | None:
    """The command for weights of a folder, None for tensors; raises unless exactly one of the three is given."""
    if sum(given is not None for given in (path, tensors, per_rank)) != 1:
        raise InvalidRequest("give one of path, tensors and per_rank: where the new weights are", param="path")
    if path is None:
        return None
    return UpdateWeights(path=str(Path(path).absolute()), version=version)


def tensor_commands(
    update: int, tensors: Tensors | None, per_rank: Mapping[int, Tensors] | None
) -> Iterator[ChunkOfTensors]:
    """The tensors in chunks, for all ranks or for those that are named."""
    if tensors is not None:
        for chunk in chunks_of(tensors):
            yield ChunkOfTensors(update=update, chunk=chunk)
    for rank, its in (per_rank or {}).items():
        for chunk in chunks_of(its):
            yield ChunkOfTensors(update=update, chunk=chunk, ranks=(rank,))


def call_command(method: str, payload: object, per_rank: Sequence[object] | None, timeout: float | None) -> CallWorkers:
    """The command that calls a worker extension. Raises ``InvalidRequest`` for what cannot be sent."""
    each = None if per_rank is None else tuple(_as_bytes(one) for one in per_rank)
    return CallWorkers(method=method, payload=_as_bytes(payload), per_rank=each, timeout=timeout)


def _as_bytes(payload: object) -> bytes:
    if isinstance(payload, bytes | bytearray | memoryview):
        return bytes(payload)
    try:
        return msgspec.json.encode(payload)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidRequest(f"a payload is bytes, or what JSON can say: {error}", param="payload") from None


def profile_command(folder: str | Path) -> StartProfile:
    """The command that starts a recording."""
    return StartProfile(folder=str(Path(folder).absolute()))


def health_of(done: ControlDone) -> EngineHealth:
    """What ``ReadStatus`` was answered; an engine of an earlier version says nothing, and is not known to be well."""
    return done.health or EngineHealth(healthy=False, why="the engine does not say how it is")


def paths_of(done: ControlDone) -> list[Path]:
    """The files that an answer names."""
    return [Path(value.decode()) for value in done.values]
