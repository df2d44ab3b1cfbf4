"""A front end of an engine that runs elsewhere: which engine, its connection, and a tokenizer that can be read here."""

from __future__ import annotations

from pathlib import Path

from enginebay.engine.front.front import Front
from enginebay.engine.remote.remote import CONNECT_SECONDS, RemoteClient
from enginebay.engine.startup.texts import bad_word_ids
from enginebay.errors import ConfigError, EngineDead, ModelError
from enginebay.runfolder import live_folders, run_root, sweep
from enginebay.runtime import Runtime, system_runtime
from enginebay.text import Tokenizer
from enginebay.transport.front_address import read_address

__all__ = ["connect", "find_address", "running_engines"]


def connect(
    address: str | None = None,
    *,
    keys: str | Path | None = None,
    tokenizer: str | Path | None = None,
    runtime: Runtime | None = None,
    timeout: float = CONNECT_SECONDS,
) -> Front:
    """A front end of the engine at ``address``; None: the only one of this user that runs.

    ``keys`` is the client's part of the engine's key file, for TCP. ``tokenizer`` is a folder or file to read the
    tokenizer from, where the engine's own cannot be read. Raises ``ConfigError``, ``EngineDead`` or ``ModelError``.
    """
    runtime = runtime or system_runtime()
    client = RemoteClient.connect(
        find_address(address), runtime, keys=None if keys is None else Path(keys), timeout=timeout
    )
    try:
        told = client.welcome
        other = tokenizer or told.tokenizer
        named = Path(other) if other else None
        where = named or Path(told.model.path)
        try:
            reader = Tokenizer.from_folder(where)
        except (ModelError, OSError) as error:
            raise ModelError(
                f"the tokenizer of the engine's model is at {where}, and cannot be read here: {error}. Give "
                "tokenizer=PATH, a folder or file on this machine with the same one"
            ) from None
        client.use_bad_words(bad_word_ids(reader))
        return Front(client, told.model, runtime, reader, tokenizer_path=named)
    except BaseException:
        client.stop()
        raise


def find_address(address: str | None) -> str:
    """``address``, or that of the only engine of this user that runs. Raises ``EngineDead``, or ``ConfigError``."""
    if address is not None:
        return address
    found = running_engines()
    if not found:
        raise EngineDead(
            f"no engine of this user runs here (none in {run_root()}): start one with 'enginebay up', or say which "
            "address to connect to"
        )
    if len(found) > 1:
        raise ConfigError(f"{len(found)} engines of this user run here; say which: {', '.join(found)}")
    return found[0]


def running_engines() -> list[str]:
    """The addresses at which this user's engines listen, those that are still loading among them."""
    sweep()
    told = [read_address(folder) for folder in live_folders()]
    return [address for address in told if address]
