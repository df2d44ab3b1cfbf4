"""The noise of draws is a pure function of its key, has known values, and is Gumbel's distribution."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from enginebay.worker.noise import draw_key, gumbel_noise, noise_bits

MASK = (1 << 64) - 1


def naive_bits(key: int, token: int) -> int:
    """The same in Python's own integers."""
    z = (key + token * 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


@given(st.integers(0, MASK), st.lists(st.integers(0, 2**32), min_size=1, max_size=8))
def test_bits_are_those_of_plain_integers(key: int, tokens: list[int]) -> None:
    assert noise_bits(key, np.array(tokens, dtype=np.uint64)).tolist() == [naive_bits(key, t) for t in tokens]


def test_bits_are_splitmix64() -> None:
    """The first outputs of the published generator with seed 1234567."""
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    assert noise_bits(1234567, np.arange(1, 5, dtype=np.uint64)).tolist() == published


def test_known_keys_stay() -> None:
    """A change of these would change every seeded answer of every user."""
    assert draw_key(0, 0, 0) == 0x238275BC38FCBE91
    assert draw_key(1, 2, 3) == 0xD0734750FDE362B3


@given(st.integers(), st.integers(0, 20), st.integers(0, 2**20))
def test_each_part_of_the_key_counts(seed: int, choice: int, position: int) -> None:
    key = draw_key(seed, choice, position)
    assert 0 <= key <= MASK
    assert draw_key(seed + 2**64, choice, position) == key
    others = {draw_key(seed + 1, choice, position), draw_key(seed, choice + 1, position)}
    others |= {draw_key(seed, choice, position + 1), draw_key(seed, position + 1, choice)}
    assert key not in others - ({key} if choice == position + 1 else set())


@given(st.integers(0, MASK), st.lists(st.integers(0, 999), unique=True, min_size=1, max_size=20))
def test_a_tokens_noise_does_not_depend_on_the_others(key: int, tokens: list[int]) -> None:
    whole = gumbel_noise(key, 1000)
    assert (gumbel_noise(key, np.array(tokens, dtype=np.uint64)) == whole[tokens]).all()


def test_it_is_always_finite() -> None:
    """Also where all bits are 0 or 1: the token ids that give these bits, by running the mixing backwards."""

    def unmix(z: int) -> int:
        for shift, factor in ((31, 0x94D049BB133111EB), (27, 0xBF58476D1CE4E5B9), (30, 1)):
            x = z
            while x:
                x >>= shift
                z ^= x
            z = z * pow(factor, -1, 1 << 64) & MASK
        return z

    for bits in (0, MASK):
        key = unmix(bits)
        assert naive_bits(key, 0) == bits
        assert math.isfinite(gumbel_noise(key, 1)[0])


def test_it_is_gumbels_distribution() -> None:
    """Mean 0.5772 and variance 1.6449 over 400,000 draws (4 standard errors), and no correlation between keys."""
    noise = np.stack([gumbel_noise(draw_key(7, 0, position), 1000) for position in range(400)])
    assert abs(noise.mean() - 0.5772) < 4 * 1.2825 / math.sqrt(noise.size)
    assert abs(noise.var() - 1.6449) < 0.05
    for axis in (0, 1):
        moved = np.roll(noise, 1, axis=axis)
        assert abs(np.corrcoef(noise.ravel(), moved.ravel())[0, 1]) < 4 / math.sqrt(noise.size)
