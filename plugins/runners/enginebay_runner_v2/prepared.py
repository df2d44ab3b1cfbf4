"""A model's step, captured and rewritten: as data, and kept on disk, so that the next start captures nothing.

The file is one JSON text in the user's cache, under a key of everything that the graph depends on. It appears whole or
not at all, by a rename. A file that is damaged, or that another version wrote, is not used: it is made anew.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import logging
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from enginebay.errors import GraphError, one_line
from enginebay.graph import Record, check_record
from enginebay.interfaces import GraphPass
from enginebay.models import cache_home
from enginebay.worker.loader_facts import ModelFacts
from enginebay.worker.probing.groups import LayerGroup
from enginebay.worker.probing.shapes import LayerShape

__all__ = ["PreparedStep", "key_of", "read_prepared", "write_prepared"]

_FORMAT = 1
_MAX_BYTES = 128 * 2**20
_LOG = logging.getLogger("enginebay.runner.v2")


class PreparedStep(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``body`` and ``head`` as ``cut`` makes them; ``shapes`` of each layer's attention, and the layers by KV group;
    ``facts`` by which the model's weights are read. Of several tensor ranks it is one's, but for the facts, which are
    the whole model's; ``split`` says for people who has which heads."""

    format: int = _FORMAT
    body: Record
    head: Record
    shapes: tuple[LayerShape, ...]
    groups: tuple[LayerGroup, ...]
    facts: ModelFacts
    split: str = ""


def key_of(config: bytes, passes: Sequence[GraphPass], **settings: str | int) -> str:
    """The name under which a step is kept. ``config``: the model's ``config.json``."""
    versions = {name: importlib.metadata.version(name) for name in ("enginebay", "torch", "transformers")}
    parts = [(one.name, one.version, one.package) for one in passes]
    text = msgspec.json.encode([_FORMAT, versions, parts, sorted(settings.items())])
    return hashlib.sha256(text + b"\0" + config).hexdigest()[:40]


def read_prepared(key: str) -> PreparedStep | None:
    """The step that is kept under ``key``; None: there is none that can be used."""
    path = _path(key)
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        _LOG.warning("%s cannot be read (%s): the model is captured again", path, error.strerror)
        return None
    try:
        if len(data) > _MAX_BYTES:
            raise GraphError(f"it has more than {_MAX_BYTES} bytes")
        prepared = msgspec.json.decode(data, type=PreparedStep)
        _check(prepared)
    except (msgspec.MsgspecError, GraphError, RecursionError, UnicodeError) as error:
        _LOG.warning("%s is not used (%s): the model is captured again", path, one_line(str(error), 200))
        return None
    return prepared


def write_prepared(key: str, prepared: PreparedStep) -> None:
    """Keep the step; a folder that cannot be written is told in the log, and costs the next start its time."""
    path = _path(key)
    partial = path.with_suffix(f".{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            partial.write_bytes(msgspec.json.encode(prepared))
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        _LOG.warning("%s cannot be written (%s): the next start captures the model again", path, error.strerror)


def _path(key: str) -> Path:
    return cache_home() / "graphs" / f"{key}.json"


def _check(prepared: PreparedStep) -> None:
    if prepared.format != _FORMAT:
        raise GraphError(f"its format is {prepared.format}, and this version reads {_FORMAT}")
    check_record(prepared.body)
    check_record(prepared.head)
    layers = sorted(layer for group in prepared.groups for layer in group.layers)
    if not prepared.shapes or layers != list(range(len(prepared.shapes))):
        raise GraphError("its groups are not of its layers")
