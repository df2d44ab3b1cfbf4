"""What the checks of the runners' suite stand on: the started runner, prompts, and its answers to them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any, ClassVar

import pytest

from enginebay.messages import SamplingParams
from enginebay.testing._runner_driver import RunnerDriver
from enginebay.testing._runner_start import StartedRunner, start_runner

__all__ = ["NUM_BLOCKS", "RunnerBase"]

NUM_BLOCKS = 96


class RunnerBase:
    """Subclassed by the checks; ``RunnerSuite`` tells what its fields mean."""

    name: ClassVar[str]
    options: ClassVar[dict[str, Any]] = {}
    dtype: ClassVar[str] = "float32"
    max_tokens: ClassVar[int] = 12
    prompt_lengths: ClassVar[tuple[int, ...]] = (1, 5, 16, 17, 33, 50)

    @pytest.fixture
    def model_folder(self, request: pytest.FixtureRequest) -> Path:
        """The folder of a small model that the runner supports: override it, or give ``--model FOLDER``."""
        folder = request.config.getoption("--model", default=None)
        if folder is None:
            raise pytest.UsageError(
                f"{type(self).__name__} needs a model: override its fixture model_folder, or give --model FOLDER"
            )
        return Path(folder)

    @pytest.fixture
    def block_size(self) -> int:
        """Tokens of a block: the runner's preferred size, else 16."""
        from enginebay.plugins import PluginHost

        sizes = PluginHost().load_runner(self.name, self.options).plugin.capabilities.constraints.block_sizes
        return sizes[0] if sizes else 16

    @pytest.fixture
    def started(self, model_folder: Path, block_size: int) -> Iterator[StartedRunner]:
        """The runner, loaded, with its cache."""
        with start_runner(
            self.name,
            model_folder,
            num_blocks=NUM_BLOCKS,
            block_size=block_size,
            options=self.options,
            dtype=self.dtype,
        ) as started:
            yield started

    def driver(
        self, started: StartedRunner, block_size: int, *, shuffle: int | None = None, generation: int = 0
    ) -> RunnerDriver:
        """A fresh scheduler for the runner; what an earlier one left in the runner is called finished."""
        return RunnerDriver(
            started.runner,
            num_blocks=NUM_BLOCKS,
            block_size=block_size,
            shuffle=shuffle,
            generation=generation,
        )

    def prompts(self, started: StartedRunner) -> list[list[int]]:
        """Deterministic prompts within the vocabulary."""
        random = Random(2)  # noqa: S311  # no secret: repeatable prompts
        return [[random.randrange(started.model.vocab_size) for _ in range(length)] for length in self.prompt_lengths]

    def params(self, **changes: Any) -> SamplingParams:
        """Greedy, without an early end."""
        return SamplingParams(**{"max_tokens": self.max_tokens, "ignore_eos": True, **changes})

    def answers(
        self,
        started: StartedRunner,
        block_size: int,
        prompts: Sequence[Sequence[int]],
        *,
        chunk: int | None = None,
        shuffle: int | None = None,
        params: SamplingParams | None = None,
    ) -> list[list[int]]:
        """The generated tokens of all prompts, run together."""
        driver = self.driver(started, block_size, shuffle=shuffle)
        for index, prompt in enumerate(prompts):
            driver.add(f"r{index}", prompt, params or self.params(), seed=index)
        tokens = list(driver.run().values() if chunk is None else driver.run(chunk=chunk).values())
        driver.step({})
        assert not driver.faults, driver.faults
        return tokens

    def chunk_sizes(self, started: StartedRunner, block_size: int) -> list[int]:
        """Sizes of chunks that the runner's constraints allow."""
        constraints = started.capabilities.constraints
        if not constraints.chunked_prefill:
            return []
        multiple = constraints.chunk_multiple
        return sorted({-(-size // multiple) * multiple for size in (1, 7, block_size, block_size + 1)})
