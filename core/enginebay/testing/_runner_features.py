"""The checks of the features that a runner declares: each fails when the runner takes the parameter and ignores it.

Values are far beyond what a request may ask, so that the parameter decides alone, whatever the model would say.
"""

from __future__ import annotations

from collections.abc import Sequence

from enginebay.messages import SamplingParams, TokenLogprob
from enginebay.testing._runner_base import RunnerBase
from enginebay.testing._runner_driver import RunnerDriver
from enginebay.testing._runner_start import StartedRunner

__all__ = ["FeatureChecks"]

_DECISIVE = 1e4
"""More than any two logits differ by."""


class FeatureChecks(RunnerBase):
    """A check returns at once when its feature is not declared: such a runner is never asked for it."""

    def test_filters_that_leave_one_token(self, started: StartedRunner, block_size: int) -> None:
        """Then a random draw is the greedy one."""
        prompts = self.prompts(started)
        greedy = self.answers(started, block_size, prompts)
        for name, value in {"top_k": 1, "top_p": 1e-9, "min_p": 1.0}.items():
            if name in started.capabilities.features:
                params = self.params(temperature=5.0, **{name: value})
                assert self.answers(started, block_size, prompts, params=params) == greedy, name

    def test_logit_bias(self, started: StartedRunner, block_size: int) -> None:
        """A large one forces its token, a very negative one keeps it away."""
        if "logit_bias" not in started.capabilities.features:
            return
        prompts = self.prompts(started)
        plain = self.answers(started, block_size, prompts)
        never = _one_not_in(plain, started.model.vocab_size)
        forced = self.answers(started, block_size, prompts, params=self.params(logit_bias={never: _DECISIVE}))
        assert forced == [[never] * self.max_tokens] * len(prompts)
        for prompt, answer in zip(prompts, plain, strict=True):
            params = self.params(logit_bias={answer[0]: -_DECISIVE})
            assert answer[0] not in self.answers(started, block_size, [prompt], params=params)[0]

    def test_bad_words(self, started: StartedRunner, block_size: int) -> None:
        """The last token of a word does not come where the others stand before it, be they prompt or answer."""
        if "bad_words" not in started.capabilities.features:
            return
        for prompt in self.prompts(started):
            first, second, *_ = self.answers(started, block_size, [prompt])[0]
            for word, length in ((first,), 0), ((prompt[-1], first), 0), ((first, second), 1):
                params = self.params(bad_words_token_ids=(word,))
                answer = self.answers(started, block_size, [prompt], params=params)[0]
                assert answer[:length] == [first][:length], f"{word} changed what stands before its last token"
                assert answer[length] != word[-1], f"{word} came"

    def test_min_tokens(self, started: StartedRunner, block_size: int) -> None:  # S8
        """A stop token and eos do not come before so many tokens, and come afterwards."""
        if "min_tokens" not in started.capabilities.features:
            return
        prompt = self.prompts(started)[1]
        plain = self.answers(started, block_size, [prompt])[0]
        stop = self.params(stop_token_ids=(plain[1],), min_tokens=2)
        assert self.answers(started, block_size, [prompt], params=stop)[0][1] != plain[1]
        late = self.params(stop_token_ids=(plain[1],), min_tokens=1)
        if plain[0] != plain[1]:
            assert self.answers(started, block_size, [prompt], params=late)[0] == plain
        if "logit_bias" in started.capabilities.features and started.model.eos_token_ids:
            eos = started.model.eos_token_ids[0]
            for ignored in (False, True):
                wanted = self.params(logit_bias={eos: _DECISIVE}, min_tokens=3, ignore_eos=ignored)
                answer = self.answers(started, block_size, [prompt], params=wanted)[0]
                assert [token == eos for token in answer[:4]] == [ignored] * 3 + [True]

    def test_repetition_penalty(self, started: StartedRunner, block_size: int) -> None:
        """One near 0 rewards every token that was seen, in the prompt or in the answer."""
        if "penalties" not in started.capabilities.features:
            return
        prompt = max(self.prompts(started), key=len)
        answer = self.answers(started, block_size, [prompt], params=self.params(repetition_penalty=1e-6))[0]
        assert set(answer) <= set(prompt)

    def test_penalties_of_the_answer(self, started: StartedRunner, block_size: int) -> None:
        """A very negative one repeats the first token, which the prompt has no part in; a large one repeats none."""
        if "penalties" not in started.capabilities.features:
            return
        prompts = self.prompts(started)
        first = [answer[0] for answer in self.answers(started, block_size, prompts)]
        for name in "frequency_penalty", "presence_penalty":
            repeated = self.answers(started, block_size, prompts, params=self.params(**{name: -_DECISIVE}))
            assert repeated == [[token] * self.max_tokens for token in first], name
            different = self.answers(started, block_size, prompts, params=self.params(**{name: _DECISIVE}))
            assert [len(set(answer)) for answer in different] == [self.max_tokens] * len(prompts), name

    def test_choices_differ_and_repeat(self, started: StartedRunner, block_size: int) -> None:
        """Four choices of one seed are four answers, and the same four again."""
        if "n" not in started.capabilities.features:
            return
        prompt, answers = self.prompts(started)[-1], []
        for _ in range(2):
            driver = self.driver(started, block_size)
            for choice in range(4):
                driver.add(f"c{choice}", prompt, self.params(temperature=5.0, n=4), seed=7, choice=choice)
            answers.append(list(driver.run().values()))
            driver.step({})
        assert answers[0] == answers[1]
        assert len({tuple(answer) for answer in answers[0]}) == 4

    def test_logprobs(self, started: StartedRunner, block_size: int) -> None:
        """One entry per drawn token, of the distribution before temperature and everything else."""
        if "logprobs" not in started.capabilities.features:
            return
        for params in (self.params(logprobs=5), self.params(logprobs=5, temperature=5.0), self.params(logprobs=0)):
            driver = self._run(started, block_size, self.prompts(started), params)
            for request_id, request in driver.requests.items():
                entries = driver.logprobs.get(request_id, [])
                assert [entry.token_id for entry in entries] == request.generated
                for entry in entries:
                    _check_entry(entry, params.logprobs or 0)
                    assert entry.rank == 1 or params.temperature > 0
        driver = self._run(started, block_size, self.prompts(started)[:1], self.params())
        assert not driver.logprobs, "log-probabilities that nobody asked for"

    def test_logprobs_are_of_the_raw_distribution(self, started: StartedRunner, block_size: int) -> None:
        if not started.capabilities.features >= {"logprobs", "logit_bias"}:
            return
        prompts = self.prompts(started)
        plain = self._run(started, block_size, prompts, self.params(logprobs=5, max_tokens=1))
        never = _one_not_in([request.generated for request in plain.requests.values()], started.model.vocab_size)
        params = self.params(logprobs=5, max_tokens=1, logit_bias={never: _DECISIVE})
        for request_id, (biased,) in self._run(started, block_size, prompts, params).logprobs.items():
            assert biased.token_id == never
            assert biased.rank > 1
            assert _near(biased, plain.logprobs[request_id][0], self._tolerance)

    def test_prompt_logprobs(self, started: StartedRunner, block_size: int) -> None:
        """From the second token of the prompt on, each once, in chunks as they are computed, and of choice 0 alone."""
        if "prompt_logprobs" not in started.capabilities.features:
            return
        prompts = self.prompts(started)
        params = self.params(prompt_logprobs=3, max_tokens=2)
        whole = self._run(started, block_size, prompts, params)
        for index, prompt in enumerate(prompts):
            entries = _gapless(whole, f"r{index}")
            assert [entry.token_id for entry in entries] == prompt[1:]
            for entry in entries:
                _check_entry(entry, 3)
        for chunk in self.chunk_sizes(started, block_size):
            cut = self._run(started, block_size, prompts, params, chunk=chunk)
            for request_id in whole.requests:
                pairs = zip(_gapless(cut, request_id), _gapless(whole, request_id), strict=True)
                assert all(ours.token_id == theirs.token_id for ours, theirs in pairs), f"chunks of {chunk}"
        driver = self.driver(started, block_size)
        driver.add("second", prompts[-1], self.params(prompt_logprobs=3, max_tokens=1, n=2), choice=1)
        driver.run()
        driver.step({})
        assert not driver.prompt_logprobs, "another choice than 0 answered for the prompt"

    def test_logprobs_of_a_prompt_are_those_of_the_same_answer(self, started: StartedRunner, block_size: int) -> None:
        if not started.capabilities.features >= {"logprobs", "prompt_logprobs"}:
            return
        prompts = self.prompts(started)
        said = self._run(started, block_size, prompts, self.params(logprobs=2))
        texts = [request.token_ids for request in said.requests.values()]
        for chunk in (None, *self.chunk_sizes(started, block_size)[:2]):
            read = self._run(started, block_size, texts, self.params(prompt_logprobs=2, max_tokens=1), chunk=chunk)
            for request_id, entries in said.logprobs.items():
                again = _gapless(read, request_id)[-len(entries) :]
                for ours, theirs in zip(again, entries, strict=True):
                    assert ours.token_id == theirs.token_id
                    assert _near(ours, theirs, self._tolerance), f"{ours} read, {theirs} said, chunks of {chunk}"

    @property
    def _tolerance(self) -> float:
        return 1e-3 if self.dtype == "float32" else 0.2

    def _run(
        self,
        started: StartedRunner,
        block_size: int,
        prompts: Sequence[Sequence[int]],
        params: SamplingParams,
        *,
        chunk: int | None = None,
    ) -> RunnerDriver:
        driver = self.driver(started, block_size)
        for index, prompt in enumerate(prompts):
            driver.add(f"r{index}", prompt, params, seed=index)
        driver.run(chunk=chunk)
        driver.step({})
        assert not driver.faults, driver.faults
        return driver


def _one_not_in(answers: Sequence[Sequence[int]], vocab_size: int) -> int:
    """The lowest id that none of the answers has."""
    return min(set(range(vocab_size)) - {token for answer in answers for token in answer})


def _check_entry(entry: TokenLogprob, top: int) -> None:
    values = [value for _, value in entry.top]
    assert len(values) == top, f"{len(values)} likeliest tokens instead of {top}: {entry}"
    assert entry.logprob <= 1e-6, entry
    assert values == sorted(values, reverse=True), entry
    assert entry.rank >= 1, entry
    if entry.rank <= top:
        assert entry.top[entry.rank - 1] == (entry.token_id, entry.logprob), entry
    elif top:
        assert entry.logprob <= values[-1], entry


def _near(ours: TokenLogprob, theirs: TokenLogprob, tolerance: float) -> bool:
    """Whether two entries may be of one distribution; near ties may stand in another order."""
    pairs = [(a, b) for (_, a), (_, b) in zip(ours.top, theirs.top, strict=True)]
    if ours.token_id == theirs.token_id:
        pairs.append((ours.logprob, theirs.logprob))
    return all(abs(a - b) <= tolerance for a, b in pairs)


def _gapless(driver: RunnerDriver, request_id: str) -> list[TokenLogprob]:
    """All entries of a request's prompt, whose chunks follow one another from position 1 on."""
    entries: list[TokenLogprob] = []
    for chunk in driver.prompt_logprobs.get(request_id, []):
        assert chunk.start == len(entries) + 1, f"{request_id}: a chunk from {chunk.start} on after {len(entries)}"
        entries.extend(chunk.entries)
    return entries
