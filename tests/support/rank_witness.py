"""A worker extension that tells which rank it is in which process, whether that process can pickle, or that fails."""

from __future__ import annotations

import json
import os
import pickle
from typing import Annotated

from pydantic import Field

from enginebay.hookspecs import hookimpl
from enginebay.interfaces import Options, WorkerExtensionContext, WorkerExtensionPlugin


class WitnessOptions(Options):
    """Where it fails."""

    fails_on: Annotated[int, Field(ge=-1, description="The rank on which it cannot be made; -1: on none.")] = -1


class Witness:
    """Tells what it sees."""

    def __init__(self, context: WorkerExtensionContext[WitnessOptions]) -> None:
        self.rank = context.place.rank
        if self.rank == context.options.fails_on:
            raise FileNotFoundError("there is no /srv/cache on this machine")

    def tell(self, payload: bytes) -> bytes:
        """JSON: rank, pid, and what came of an attempt to pickle."""
        try:
            pickle.dumps(payload)
            pickling = ""
        except AssertionError as error:
            pickling = f"{type(error).__name__}: {error}"
        return json.dumps({"rank": self.rank, "pid": os.getpid(), "pickling": pickling}).encode()


@hookimpl
def enginebay_register_worker_extensions() -> list[WorkerExtensionPlugin[WitnessOptions]]:
    """The witness."""
    return [WorkerExtensionPlugin(name="witness", options=WitnessOptions, factory=Witness, methods=("tell",))]
