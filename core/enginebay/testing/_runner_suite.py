"""The conformance suite for model runners: subclass it, give the name of your runner and a model folder, run pytest.

::

    class TestMyRunner(RunnerSuite):
        name = "mine"

        @pytest.fixture
        def model_folder(self, tmp_path: Path) -> Path:
            return make_my_model(tmp_path)

or run it on an installed runner by name::

    pytest -p enginebay.testing.plugin --pyargs enginebay.testing.suite --runner mine --model FOLDER

What your descriptor declares (features, constraints) decides what is asked of it.
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from enginebay.messages import NewRequest, RunningRequest, SchedulerOutput
from enginebay.testing._runner_base import NUM_BLOCKS
from enginebay.testing._runner_features import FeatureChecks
from enginebay.testing._runner_grammars import GrammarChecks
from enginebay.testing._runner_start import StartedRunner, start_runner
from enginebay.testing._runner_weights import WeightChecks

__all__ = ["RunnerSuite"]


class RunnerSuite(FeatureChecks, GrammarChecks, WeightChecks):
    """What every runner must keep. Each check drives the runner through the engine's own messages.

    ``prompt_lengths``: tokens of the prompts; they should lie on both sides of a block's border and of a window.
    """

    def test_alone_equals_together(self, started: StartedRunner, block_size: int) -> None:
        prompts = self.prompts(started)
        together = self.answers(started, block_size, prompts)
        assert [len(tokens) for tokens in together] == [self.max_tokens] * len(prompts)
        alone = [self.answers(started, block_size, [prompt])[0] for prompt in prompts]
        assert alone == together

    def test_chunks_equal_whole(self, started: StartedRunner, block_size: int) -> None:
        prompts = self.prompts(started)
        whole = self.answers(started, block_size, prompts)
        for chunk in self.chunk_sizes(started, block_size):
            assert self.answers(started, block_size, prompts, chunk=chunk) == whole, f"chunks of {chunk}"

    def test_order_of_blocks_is_nothing(self, started: StartedRunner, block_size: int) -> None:
        prompts = self.prompts(started)
        straight = self.answers(started, block_size, prompts)
        for seed in (1, 2):
            assert self.answers(started, block_size, prompts, shuffle=seed) == straight, f"blocks shuffled by {seed}"

    def test_answers_depend_on_the_history(self, started: StartedRunner, block_size: int) -> None:
        """A runner that forgets its history would pass every comparison of itself with itself."""
        random = Random(3)  # noqa: S311  # no secret: a repeatable prompt
        prompt = [random.randrange(started.model.vocab_size) for _ in range(block_size + 3)]
        other = prompt.copy()
        other[block_size - 2] = (prompt[block_size - 2] + 1) % started.model.vocab_size  # in the block before the last
        answers = self.answers(started, block_size, [prompt, other])
        assert answers[0] != answers[1], "a token in the block before the last changes nothing"

    def test_partial_prefill_returns_no_tokens(self, started: StartedRunner, block_size: int) -> None:
        sizes = self.chunk_sizes(started, block_size)
        longest = max(self.prompts(started), key=len)
        if sizes:  # a runner without chunked prefill is never given a part of a prompt
            driver = self.driver(started, block_size)
            driver.add("long", longest, self.params())
            while driver.requests["long"].computed + sizes[0] < len(longest):
                assert driver.step({"long": sizes[0]}) == {"long": ()}
            assert len(driver.step({"long": len(longest) - driver.requests["long"].computed})["long"]) == 1

    def test_an_empty_step_answers_for_nobody(self, started: StartedRunner, block_size: int) -> None:
        assert self.driver(started, block_size).step({}) == {}

    def test_resume_after_preemption(self, started: StartedRunner, block_size: int) -> None:
        prompts = self.prompts(started)[-3:]
        undisturbed = self.answers(started, block_size, prompts)
        driver = self.driver(started, block_size, shuffle=3)
        for index in (0, 1):
            driver.add(f"r{index}", prompts[index], self.params(), seed=index)
        driver.step({f"r{index}": len(prompts[index]) for index in (0, 1)})
        for _ in range(3):
            driver.step({"r0": 1, "r1": 1})
        driver.preempt("r1")
        driver.add("r2", prompts[2], self.params(), seed=2)
        driver.step({"r0": 1, "r2": len(prompts[2])})  # r2 is given the blocks that r1 had
        assert list(driver.run().values()) == undisturbed

    def test_abort_leaves_the_others_alone(self, started: StartedRunner, block_size: int) -> None:
        prompts = self.prompts(started)
        undisturbed = self.answers(started, block_size, prompts)
        driver = self.driver(started, block_size)
        for index, prompt in enumerate(prompts):
            driver.add(f"r{index}", prompt, self.params(), seed=index)
        driver.step({f"r{index}": len(prompt) for index, prompt in enumerate(prompts)})
        driver.abort("r2")
        driver.add("late", prompts[3], self.params(), seed=3)  # gets the blocks of the aborted one
        ids = [f"r{index}" for index in range(len(prompts)) if index != 2]
        answers = driver.run([*ids, "late"])
        assert [answers[request_id] for request_id in ids] == [t for i, t in enumerate(undisturbed) if i != 2]
        assert answers["late"] == undisturbed[3]

    def test_an_id_can_come_again(self, started: StartedRunner, block_size: int) -> None:
        """Finished and new in one step: the old state is dropped before the new one is taken."""
        first, second = self.prompts(started)[1:3]
        expected = self.answers(started, block_size, [first, second])
        driver = self.driver(started, block_size)
        driver.add("same", first, self.params(), seed=0)
        assert driver.run()["same"] == expected[0]
        driver.add("same", second, self.params(), seed=1)
        assert driver.run()["same"] == expected[1]

    def test_prefix_hit(self, started: StartedRunner, block_size: int) -> None:
        """Blocks that another request filled are read, not computed again."""
        if not started.capabilities.constraints.prefix_caching:
            return  # such a runner is never given a hit
        random = Random(4)  # noqa: S311  # no secret: repeatable prompts
        shared = [random.randrange(started.model.vocab_size) for _ in range(2 * block_size)]
        prompts = [[*shared, *tail] for tail in ([1, 2, 3], [5], [4] * (block_size + 2))]
        cold = self.answers(started, block_size, prompts)
        driver = self.driver(started, block_size, shuffle=5)
        driver.add("r0", prompts[0], self.params(), seed=0)
        driver.step({"r0": len(prompts[0])})
        for index in (1, 2):
            driver.add(f"r{index}", prompts[index], self.params(), seed=index, shares="r0", shared_blocks=2)
        assert list(driver.run().values()) == cold

    def test_draws_are_keyed(self, started: StartedRunner, block_size: int) -> None:
        """With a seed, a draw depends on (seed, choice, position) and not on the batch, chunks or blocks."""
        if "seed" not in started.capabilities.features:
            return  # such a runner is never given one
        prompts = self.prompts(started)
        params = self.params(temperature=1.5, seed=1)
        together = self.answers(started, block_size, prompts, params=params)
        for chunk in self.chunk_sizes(started, block_size)[:2]:
            assert self.answers(started, block_size, prompts, chunk=chunk, shuffle=6, params=params) == together
        driver = self.driver(started, block_size)
        for index, (seed, choice) in enumerate([(2, 0), (2, 0), (3, 0), (2, 1)]):
            driver.add(f"s{index}", prompts[-1], params, seed=seed, choice=choice)
        same, again, other_seed, other_choice = driver.run().values()
        driver.step({})
        assert same == again
        assert same != other_seed
        assert same != other_choice

    def test_contradictions_are_refused(self, started: StartedRunner, block_size: int) -> None:
        """A schedule that names a request which the runner does not hold is an error, not a guess."""
        driver = self.driver(started, block_size)
        driver.add("known", self.prompts(started)[1], self.params())
        driver.step({"known": 5})
        stranger = SchedulerOutput(
            step=99,
            running=(RunningRequest(request_id="stranger", num_computed_tokens=5),),
            num_scheduled_tokens={"stranger": 1},
        )
        with pytest.raises(Exception, match="stranger"):
            started.runner.execute_model(stranger)

    def test_a_new_generation_begins_anew(self, started: StartedRunner, block_size: int) -> None:
        """After a void every request comes again as new, on any blocks; nothing of the steps before is left."""
        prompts = self.prompts(started)[:4]
        expected = [self.answers(started, block_size, [prompt])[0] for prompt in prompts]
        void = self.driver(started, block_size)
        for index, prompt in enumerate(prompts):
            void.add(f"r{index}", prompt, self.params(), seed=0)
        void.step({f"r{index}": len(prompt) for index, prompt in enumerate(prompts)})
        fresh = self.driver(started, block_size, shuffle=5, generation=1)
        for index, prompt in enumerate(prompts):
            fresh.add(f"r{index}", prompt, self.params(), seed=0)
        assert list(fresh.run().values()) == expected

    def test_messages_are_left_alone(self, started: StartedRunner, block_size: int) -> None:
        """Neither the batch's order nor the scheduler's objects are changed by the runner."""
        prompt = self.prompts(started)[1]
        params = self.params()
        counts = {"b": len(prompt), "a": len(prompt)}
        new = tuple(
            NewRequest(
                request_id=request_id,
                token_ids=tuple(prompt),
                num_prompt_tokens=len(prompt),
                params=params,
                seed=0,
                block_ids=tuple((offset + group,) for group in range(started.groups)),
                num_computed_tokens=0,
            )
            for offset, request_id in zip((0, started.groups), counts, strict=True)
        )
        output = SchedulerOutput(step=0, new=new, num_scheduled_tokens=counts)
        result = started.runner.execute_model(output)
        if result is None:
            result = started.runner.sample_tokens(None)
        answer: Any = result if hasattr(result, "request_ids") else result.get_output()
        assert answer.request_ids == ("b", "a")
        assert counts == {"b": len(prompt), "a": len(prompt)}
        assert answer.sampled_token_ids[0] == answer.sampled_token_ids[1]

    def test_starts_twice_in_one_process(self, model_folder: Path, block_size: int) -> None:
        tokens = []
        for _ in range(2):
            with start_runner(
                self.name,
                model_folder,
                num_blocks=NUM_BLOCKS,
                block_size=block_size,
                options=self.options,
                dtype=self.dtype,
            ) as started:
                tokens.append(self.answers(started, block_size, self.prompts(started)[:2]))
        assert tokens[0] == tokens[1]
