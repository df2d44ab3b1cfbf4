"""A runner without a model for chaos: each token depends on every one before it, on the seed and on the grammar.

A token lost, repeated or drawn with another seed changes all that come after it. Ranks of one world share nothing.
"""

from __future__ import annotations

import zlib
from array import array

from enginebay.hookspecs import hookimpl
from enginebay.interfaces import RunnerCapabilities, RunnerPlugin
from enginebay.messages import GrammarOutput, ModelRunnerOutput, SchedulerOutput
from enginebay.worker import HostDevice, ScheduledRow
from enginebay.worker.distributed import Membership
from support.fake_engine import EOS, FEATURES, FakeOptions, FakeRunner, masks_of

_LETTERS = b"abcdefghijklmnopqrstuvwxyz "
_ENDS = 97
"""One of so many draws is the end of the answer."""


def token_after(one: ScheduledRow, mask: int) -> int:
    """The token that comes next; 0 for ``mask``: all are allowed."""
    row = one.row
    seed = row.seed if row.params.temperature else 0
    number = zlib.crc32(array("q", [seed, row.choice, *row.token_ids]).tobytes())
    if mask:
        allowed = [index for index in range(mask.bit_length()) if mask >> index & 1]
        return allowed[number % len(allowed)]
    return EOS if number % _ENDS == 0 else _LETTERS[number % len(_LETTERS)]


class ChaosRunner(FakeRunner):
    """``token_after`` as a whole runner."""

    def execute_model(self, scheduler_output: SchedulerOutput) -> ModelRunnerOutput | None:
        return super().execute_model(scheduler_output)

    def sample_tokens(self, grammar_output: GrammarOutput | None) -> ModelRunnerOutput:
        drawn = {}
        for one in self.rows:
            if one.samples:
                masks = masks_of(grammar_output, one.row.request_id)
                drawn[one.row.request_id] = (token_after(one, masks[0] if masks else 0),)
        return self.table.finish_step(drawn)


def make_device(kind: str) -> HostDevice:
    """In a worker, before it would meet its peers: these compute nothing together, and so need no torch."""
    from enginebay.interfaces import WorkerGroups
    from enginebay.worker import start

    start.join_world = lambda *place: Membership(WorkerGroups())
    return HostDevice()


@hookimpl
def enginebay_register_runners() -> list[RunnerPlugin[FakeOptions]]:
    """The runner ``chaos``."""
    return [
        RunnerPlugin(
            name="chaos",
            options=FakeOptions,
            factory=ChaosRunner,
            capabilities=RunnerCapabilities(features=FEATURES, tensor_parallel=True),
            device=make_device,
            supports=lambda model: None if model.model_type == "fake" else "it only runs fake models",
        )
    ]
