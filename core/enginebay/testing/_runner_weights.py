"""The checks of a runner that sleeps or takes other weights: afterwards it answers as before, or as they say.

Other weights are the model's own with the sign of every third number of its matrices turned, given as tensors; the
model's own come back by the folder. To turn all of them would change no answer: each activation between two blocks
then has the other sign, and the head, turned too, the same logits.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from enginebay.messages import FinishWeightUpdate, StartWeightUpdate, TensorPiece, WeightsChunk
from enginebay.testing._runner_base import RunnerBase
from enginebay.testing._runner_start import StartedRunner

__all__ = ["WeightChecks"]

_SIZES: Final = {"BF16": ("bfloat16", 2), "F16": ("float16", 2), "F32": ("float32", 4)}
_HEAD: Final = 8


class WeightChecks(RunnerBase):
    """A check returns at once when its capability is not declared: such a runner is never asked for it."""

    def test_weights_three_calls(self, started: StartedRunner, block_size: int) -> None:  # E7
        """Other weights answer otherwise, from the finish on and not before; the old ones answer as before."""
        if not started.capabilities.update_weights:
            return
        before = self._weighed(started, block_size)
        for halfway in (1, 2):
            chunks = list(_turned(Path(started.model.path)))
            started.runner.start_weight_update(StartWeightUpdate())
            for number, chunk in enumerate(chunks):
                started.runner.update_weights_chunk(chunk)
                if number == len(chunks) // 2:
                    assert self._weighed(started, block_size) == before, "a chunk counts before the finish"
            started.runner.finish_weight_update(FinishWeightUpdate(version=f"turned {halfway}"))
            turned = self._weighed(started, block_size)
            assert turned != before, "the new weights change no answer"
            self._own(started)
            assert self._weighed(started, block_size) == before, "the model's own weights have not come back"

    def test_weights_aborted_midway(self, started: StartedRunner, block_size: int) -> None:  # E7
        """Nothing of an update that was given up is left, also for the next one."""
        if not started.capabilities.update_weights:
            return
        before = self._weighed(started, block_size)
        chunks = list(_turned(Path(started.model.path)))
        for count in (0, 1, len(chunks)):
            started.runner.start_weight_update(StartWeightUpdate())
            for chunk in chunks[:count]:
                started.runner.update_weights_chunk(chunk)
            started.runner.abort_weight_update()
            assert self._weighed(started, block_size) == before, f"aborted after {count} chunks"
        self._own(started)
        assert self._weighed(started, block_size) == before, "what was aborted came with the next update"

    def test_weights_that_lack_some(self, started: StartedRunner, block_size: int) -> None:  # E7
        """An update with nothing in it is refused at the finish, and the old weights answer on."""
        if not started.capabilities.update_weights:
            return
        before = self._weighed(started, block_size)
        started.runner.start_weight_update(StartWeightUpdate())
        try:
            started.runner.finish_weight_update(FinishWeightUpdate())
        except Exception:  # of whatever class the runner likes
            started.runner.abort_weight_update()
        else:
            raise AssertionError("an update without any weights was finished")
        assert self._weighed(started, block_size) == before

    def test_sleep(self, started: StartedRunner, block_size: int) -> None:  # E7
        """After both levels, woken whole and part by part, it answers as before."""
        if not started.capabilities.sleep:
            return
        before = self._weighed(started, block_size)
        for tags in ((frozenset({"weights", "kv_cache"}),), (frozenset({"weights"}), frozenset({"kv_cache"}))):
            started.runner.sleep(1)
            for some in tags:
                started.runner.wake_up(some)
            assert self._weighed(started, block_size) == before, f"after level 1, woken by {tags}"
        if started.capabilities.update_weights:
            for cache_first in (True, False):
                started.runner.sleep(2)
                if cache_first:
                    started.runner.wake_up(frozenset({"kv_cache"}))
                self._own(started)
                if not cache_first:
                    started.runner.wake_up(frozenset({"kv_cache"}))
                assert self._weighed(started, block_size) == before, "after level 2"

    def _own(self, started: StartedRunner) -> None:
        """The model's own weights, from its folder."""
        started.runner.start_weight_update(StartWeightUpdate(path=started.model.path))
        started.runner.finish_weight_update(FinishWeightUpdate())

    def _weighed(self, started: StartedRunner, block_size: int) -> list[list[int]]:
        """Answers by which weights are told apart. Each time under a generation of its own, as after a change."""
        self._generation = getattr(self, "_generation", 0) + 1
        driver = self.driver(started, block_size, generation=self._generation)
        for index, prompt in enumerate(self.prompts(started)):
            driver.add(f"r{index}", prompt, self.params(), seed=index)
        tokens = list(driver.run().values())
        driver.step({})
        assert not driver.faults, driver.faults
        return tokens


def _turned(folder: Path) -> Iterator[WeightsChunk]:
    """The tensors of a folder, a chunk each, and the first of them in two pieces; matrices with their signs turned."""
    for number, (name, entry, data) in enumerate(_tensors(folder)):
        dtype, size = _SIZES[entry["dtype"]]
        shape: Sequence[int] = entry["shape"]
        if len(shape) > 1:
            data = _signs_turned(data, size)
        cut = len(data) // 2 // size * size if number == 0 else 0
        for offset, part in ((0, data[:cut]), (cut, data[cut:])) if cut else ((0, data),):
            piece = TensorPiece(name=name, dtype=dtype, shape=tuple(shape), data=part, offset=offset)
            yield WeightsChunk(pieces=(piece,))


def _tensors(folder: Path) -> Iterator[tuple[str, dict[str, Any], bytes]]:
    for path in sorted(folder.glob("*.safetensors")):
        content = path.read_bytes()
        length = int.from_bytes(content[:_HEAD], "little")
        header: dict[str, Any] = json.loads(content[_HEAD : _HEAD + length])
        for name, entry in header.items():
            if name != "__metadata__":
                start, end = entry["data_offsets"]
                yield name, entry, content[_HEAD + length + start : _HEAD + length + end]


def _signs_turned(data: bytes, size: int) -> bytes:
    """Those of every third number. A sign is the highest bit of the last byte of a little-endian number."""
    turned = bytearray(data)
    turned[size - 1 :: 3 * size] = bytes(byte ^ 0x80 for byte in turned[size - 1 :: 3 * size])
    return bytes(turned)
