"""What a draw must be, read off the definitions in plain numpy and Python, sharing nothing with the sampler."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from enginebay.messages import SamplingParams

Floats = NDArray[np.float64]


def penalized(logits: Sequence[float], params: SamplingParams, prompt: Sequence[int], answer: Sequence[int]) -> Floats:
    """The logits after repetition, frequency and presence penalties."""
    scores = np.array(logits, dtype=np.float64)
    for token in range(len(scores)):
        if token in prompt or token in answer:
            factor = params.repetition_penalty
            scores[token] = scores[token] / factor if scores[token] > 0 else scores[token] * factor
        scores[token] -= params.frequency_penalty * list(answer).count(token)
        if token in answer:
            scores[token] -= params.presence_penalty
    return scores


def banned(params: SamplingParams, prompt: Sequence[int], answer: Sequence[int], eos: Sequence[int]) -> set[int]:
    """The tokens that may not come next."""
    known, gone = [*prompt, *answer], set()
    if len(answer) < params.min_tokens:
        gone |= set(params.stop_token_ids) | (set() if params.ignore_eos else set(eos))
    for word in params.bad_words_token_ids:
        for token in range(max(word) + 1):
            if tuple([*known, token][-len(word) :]) == tuple(word):
                gone.add(token)
    return gone


def shaped(
    logits: Sequence[float], params: SamplingParams, prompt: Sequence[int], answer: Sequence[int], eos: Sequence[int]
) -> Floats:
    """The logits after penalties, bias and bans."""
    scores = penalized(logits, params, prompt, answer)
    for token, bias in params.logit_bias.items():
        scores[token] += bias
    for token in banned(params, prompt, answer, eos):
        if token < len(scores):
            scores[token] = -math.inf
    return scores


def kept(scores: Sequence[float], top_k: int = 0, min_p: float = 0.0, top_p: float = 1.0) -> list[int]:
    """Which ids may be drawn, best first: top-k, then min-p, then top-p of what is left."""
    order = sorted(range(len(scores)), key=lambda i: (-scores[i], i))
    if top_k > 0:
        order = order[:top_k]
    best = max(scores)
    weights = {i: math.exp(scores[i] - best) for i in order}
    if min_p > 0:
        order = [i for i in order if weights[i] >= min_p]
    if top_p >= 1.0:
        return order
    total = sum(weights[i] for i in order)
    left: list[int] = []
    reached = 0.0
    for i in order:
        if left and reached >= top_p:
            break
        left.append(i)
        reached += weights[i] / total
    return left


def probabilities(scores: Sequence[float], params: SamplingParams) -> Floats:
    """How likely each token is, of scores after penalties, bias and bans."""
    scaled = np.array(scores, dtype=np.float64) / params.temperature
    weights = np.zeros(len(scaled))
    allowed = kept(scaled.tolist(), params.top_k, params.min_p, params.top_p)
    weights[allowed] = np.exp(scaled[allowed] - scaled.max())
    shares: Floats = weights / weights.sum()
    return shares


def log_softmax(logits: Sequence[float]) -> Floats:
    """Natural log-probabilities."""
    exact = np.array(logits, dtype=np.float64)
    values: Floats = exact - exact.max() - math.log(np.exp(exact - exact.max()).sum())
    return values
