"""The checks of a runner that declares ``grammar``: it draws what the masks allow, and waits until it has them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from enginebay.messages import GrammarOutput, SamplingParams, StructuredOutput
from enginebay.testing._runner_base import RunnerBase
from enginebay.testing._runner_driver import RunnerDriver
from enginebay.testing._runner_start import StartedRunner

__all__ = ["GrammarChecks"]

_STEPS = 4
_DECISIVE = 1e4
"""More than any two logits differ by."""
_WORD = 32


class GrammarChecks(RunnerBase):
    """A check returns at once when ``grammar`` is not declared: such a runner is never sent masks."""

    def test_grammar_allows_few(self, started: StartedRunner, block_size: int) -> None:
        """No other token comes, whatever the model, a bias or a random draw would have."""
        if "grammar" not in started.capabilities.features:
            return
        prompts, vocab_size = self.prompts(started), started.model.vocab_size
        plain = self.answers(started, block_size, prompts)
        unlikely = _not_in(plain, vocab_size, 2)
        wishes: list[dict[str, Any]] = [{}, {"temperature": 5.0}]
        if "logit_bias" in started.capabilities.features:
            wishes.append({"logit_bias": {_not_in([*plain, unlikely], vocab_size, 1)[0]: _DECISIVE}})
        for wish in wishes:
            driver = self._opened(started, block_size, prompts, self._shaped(**wish))
            for step in range(_STEPS):
                drawn = driver.step(
                    _counts(driver), grammar=_masks({key: [unlikely] for key in driver.requests}, started)
                )
                assert all(set(tokens) <= set(unlikely) for tokens in drawn.values()), f"{wish}, step {step}: {drawn}"
                assert all(len(tokens) == 1 for tokens in drawn.values()), f"{wish}, step {step}: {drawn}"
            driver.finish()

    def test_grammar_allows_the_best(self, started: StartedRunner, block_size: int) -> None:
        """Among the tokens that it allows the draw is the one that it would be without it: masks change no score."""
        if "grammar" not in started.capabilities.features:
            return
        prompts = self.prompts(started)
        plain = self.answers(started, block_size, prompts)
        driver = self._opened(started, block_size, prompts, self._shaped())
        others = _not_in(plain, started.model.vocab_size, 1)
        for step in range(_STEPS):
            allowed = {f"r{index}": [[tokens[step], *others]] for index, tokens in enumerate(plain)}
            drawn = driver.step(_counts(driver), grammar=_masks(allowed, started))
            assert drawn == {f"r{index}": (tokens[step],) for index, tokens in enumerate(plain)}, f"step {step}"
        driver.finish()

    def test_grammar_of_one_step(self, started: StartedRunner, block_size: int) -> None:
        """A step without masks draws freely, after one that had them."""
        if "grammar" not in started.capabilities.features:
            return
        prompts = self.prompts(started)
        plain = self.answers(started, block_size, prompts)
        driver = self._opened(started, block_size, prompts, self._shaped())
        first = {f"r{index}": [[tokens[0]]] for index, tokens in enumerate(plain)}
        driver.step(_counts(driver), grammar=_masks(first, started))
        assert list(driver.run().values()) == plain, "a mask counted in a later step"
        driver.finish()

    def test_grammar_beside_free_ones(self, started: StartedRunner, block_size: int) -> None:
        """Each mask goes to the request that it names, in whatever order, and to no other of the step."""
        if "grammar" not in started.capabilities.features:
            return
        prompts, vocab_size = self.prompts(started), started.model.vocab_size
        plain = self.answers(started, block_size, prompts)
        forced = _not_in(plain, vocab_size, len(prompts))
        driver = self._opened(started, block_size, prompts, self._shaped())
        bound = [index for index in range(len(prompts)) if index % 2]
        masks = {f"r{index}": [[forced[index]]] for index in reversed(bound)}
        drawn = driver.step(_counts(driver), grammar=_masks(masks, started))
        for index, tokens in enumerate(plain):
            expected = forced[index] if index in bound else tokens[0]
            assert drawn[f"r{index}"] == (expected,), f"r{index}, {'constrained' if index in bound else 'free'}"
        driver.finish()

    def test_grammar_beside_a_part_of_a_prompt(self, started: StartedRunner, block_size: int) -> None:
        """A request that draws nothing in the step stands among those that do, and has no mask."""
        sizes = self.chunk_sizes(started, block_size)
        if "grammar" not in started.capabilities.features or not sizes:
            return
        prompts = sorted(self.prompts(started), key=len)
        short, long = prompts[0], prompts[-1]
        plain = self.answers(started, block_size, [short, long])
        forced = _not_in(plain, started.model.vocab_size, 2)
        driver = self._opened(started, block_size, [long, short], self._shaped())
        counts = {"r0": sizes[0], "r1": len(short)}
        assert driver.step(counts, grammar=_masks({"r1": [[forced[0]]]}, started)) == {"r0": (), "r1": (forced[0],)}
        rest = {"r0": len(long) - sizes[0]}
        assert driver.step(rest, grammar=_masks({"r0": [[forced[1]]]}, started)) == {"r0": (forced[1],)}
        driver.finish()

    def test_grammar_with_proposals(self, started: StartedRunner, block_size: int) -> None:
        """A mask for each position: a proposal that fits is taken and the next mask counts, up to one that does not."""
        most = min(started.capabilities.max_draft_tokens, 3)
        if "grammar" not in started.capabilities.features or not most:
            return
        prompts = self.prompts(started)
        plain = self.answers(started, block_size, prompts)
        forced = _not_in(plain, started.model.vocab_size, most + 3)
        fits, last, other, misfit = forced[:most], forced[most], forced[most + 1], forced[most + 2]
        for length in range(most + 1):  # of so many proposals that fit, and then one that does not
            proposed = [*fits[:length], misfit][:most]
            driver = self._opened(started, block_size, prompts, self._shaped())
            driver.step(_counts(driver))
            masks = {f"r{index}": [[token] for token in [*fits[:length], last]] for index in range(len(prompts))}
            if len(proposed) > length:
                for rows in masks.values():
                    rows.append([other])  # behind the proposal that is not taken: it never counts
            drafts = {f"r{index}": proposed for index in range(len(prompts)) if index != 1}
            masks["r1"] = [[last]]
            drawn = driver.step(
                {name: 1 + len(drafts.get(name, ())) for name in masks}, drafts=drafts, grammar=_masks(masks, started)
            )
            assert drawn.pop("r1") == (last,)
            assert set(drawn.values()) == {(*fits[:length], last)}, (
                f"{length} of {len(proposed)} proposals fit: {drawn}"
            )
            after = driver.step(_counts(driver))
            assert all(len(tokens) == 1 for tokens in after.values()), after
            driver.finish()

    def test_grammar_wins_over_min_tokens(self, started: StartedRunner, block_size: int) -> None:
        """Where only the end is allowed it comes, and below ``min_tokens`` nowhere else."""
        if not started.capabilities.features >= {"grammar", "min_tokens"} or not started.model.eos_token_ids:
            return
        prompts, eos = self.prompts(started), started.model.eos_token_ids[0]
        plain = self.answers(started, block_size, prompts)
        other = _not_in([*plain, started.model.eos_token_ids], started.model.vocab_size, 1)[0]
        params = self._shaped(min_tokens=self.max_tokens, ignore_eos=False)
        driver = self._opened(started, block_size, prompts, params)
        for allowed, expected in ([eos, other], other), ([eos], eos):
            drawn = driver.step(_counts(driver), grammar=_masks({key: [allowed] for key in driver.requests}, started))
            assert set(drawn.values()) == {(expected,)}, f"{allowed} were allowed: {drawn}"
        driver.finish()

    def _shaped(self, **changes: Any) -> SamplingParams:
        return self.params(structured=StructuredOutput(), **changes)

    def _opened(
        self, started: StartedRunner, block_size: int, prompts: Sequence[Sequence[int]], params: SamplingParams
    ) -> RunnerDriver:
        driver = self.driver(started, block_size)
        for index, prompt in enumerate(prompts):
            driver.add(f"r{index}", prompt, params, seed=index)
        return driver


def _counts(driver: RunnerDriver) -> dict[str, int]:
    """For each request all that is not computed of it."""
    return {name: len(request.token_ids) - request.computed for name, request in driver.requests.items()}


def _masks(allowed: Mapping[str, Sequence[Collection[int]]], started: StartedRunner) -> GrammarOutput:
    """Of each request the tokens that may come at each position."""
    words = -(-started.model.vocab_size // _WORD)
    rows = [(name, tokens) for name, positions in allowed.items() for tokens in positions]
    return GrammarOutput(
        request_ids=tuple(name for name, _ in rows),
        bitmask=b"".join(sum(1 << token for token in set(tokens)).to_bytes(4 * words, "little") for _, tokens in rows),
        words_per_row=words,
    )


def _not_in(answers: Sequence[Sequence[int]], vocab_size: int, count: int) -> list[int]:
    """The lowest ids that none of the answers has."""
    return sorted(set(range(vocab_size)) - {token for answer in answers for token in answer})[:count]
