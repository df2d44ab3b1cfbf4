"""The noise of random draws: Gumbel noise keyed by (seed, choice, position, token id) and by nothing else. Numpy only.

A token is drawn as ``argmax(logits / temperature + noise)``, which draws from the softmax exactly (Gumbel, 1954).
Since the noise is a pure function of its key, a draw does not depend on the batch, on a preemption or on a restart.
The bits come from splitmix64's finaliser (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014)
over a counter, so that any token's noise can be computed alone.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["draw_key", "gumbel_noise", "noise_bits"]

_MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
"""The counter's stride: 2**64 over the golden ratio, made odd."""
MIX_1 = 0xBF58476D1CE4E5B9
MIX_2 = 0x94D049BB133111EB


def _mix(value: int) -> int:
    value = ((value ^ (value >> 30)) * MIX_1) & _MASK
    value = ((value ^ (value >> 27)) * MIX_2) & _MASK
    return value ^ (value >> 31)


def draw_key(seed: int, choice: int, position: int) -> int:
    """The 64-bit key of one draw. ``position`` is the index that the drawn token will have, prompt included.

    Any integer may be a seed; it counts modulo 2**64.
    """
    key = _mix((seed + GOLDEN) & _MASK)
    key = _mix((key ^ (choice & _MASK)) + GOLDEN & _MASK)
    return _mix((key ^ (position & _MASK)) + GOLDEN & _MASK)


def noise_bits(key: int | NDArray[np.uint64], token_ids: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """64 random bits per token id, same shape as ``token_ids``; ``key`` may be an array that broadcasts to it."""
    bits = token_ids * np.uint64(GOLDEN)
    bits += np.uint64(key) if isinstance(key, int) else key
    bits ^= bits >> np.uint64(30)
    bits *= np.uint64(MIX_1)
    bits ^= bits >> np.uint64(27)
    bits *= np.uint64(MIX_2)
    bits ^= bits >> np.uint64(31)
    return bits


def gumbel_noise(key: int | NDArray[np.uint64], token_ids: NDArray[np.uint64] | int) -> NDArray[np.float64]:
    """Standard Gumbel noise per token id (a number n: for ids 0 to n - 1); always finite, between -3.7 and 37.

    ``key`` as for ``noise_bits``.
    """
    ids = np.arange(token_ids, dtype=np.uint64) if isinstance(token_ids, int) else token_ids
    bits = noise_bits(key, ids)
    bits >>= np.uint64(12)  # 52 bits and a half are exact in float64; of 53 the largest would round to 1
    noise = bits.astype(np.float64)
    noise += 0.5
    noise *= 2.0**-52
    np.log(noise, out=noise)
    np.negative(noise, out=noise)
    np.log(noise, out=noise)
    return np.negative(noise, out=noise)
