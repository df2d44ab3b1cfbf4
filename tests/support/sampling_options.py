"""Each sampling parameter that the command line knows, as it is written there and as it arrives."""

from __future__ import annotations

from typing import Any

__all__ = ["GIVEN"]

GIVEN: dict[str, tuple[list[str], Any]] = {
    "max_tokens": (["--max-tokens", "7"], 7),
    "temperature": (["--temperature", "0.5"], 0.5),
    "top_k": (["--top-k", "3"], 3),
    "top_p": (["--top-p", "0.5"], 0.5),
    "min_p": (["--min-p", "0.05"], 0.05),
    "seed": (["--seed", "9"], 9),
    "n": (["--n", "4"], 4),
    "repetition_penalty": (["--repetition-penalty", "1.1"], 1.1),
    "presence_penalty": (["--presence-penalty", "-0.5"], -0.5),
    "frequency_penalty": (["--frequency-penalty", "0.5"], 0.5),
    "logit_bias": (["--logit-bias", "5=-3.5", "--logit-bias", "6=1"], {5: -3.5, 6: 1.0}),
    "bad_words": (["--bad-word", "no", "--bad-word", "never"], ("no", "never")),
    "min_tokens": (["--min-tokens", "2"], 2),
    "stop": (["--stop", "a", "--stop", "b"], ("a", "b")),
    "ignore_eos": (["--ignore-eos"], True),
    "truncate_prompt_tokens": (["--truncate-prompt", "100"], 100),
    "logprobs": (["--logprobs", "0"], 0),
    "prompt_logprobs": (["--prompt-logprobs", "5"], 5),
}
