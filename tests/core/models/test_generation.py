"""Settings of generation_config.json that change greedy tokens are told of by name and value, never lost."""

from __future__ import annotations

from typing import Any

import pytest

from enginebay.models._generation import _NEUTRAL, ignored_settings

CHANGING: dict[str, Any] = {
    "bad_words_ids": [[5]],
    "begin_suppress_tokens": [3],
    "dola_layers": "high",
    "encoder_no_repeat_ngram_size": 2,
    "encoder_repetition_penalty": 1.5,
    "exponential_decay_length_penalty": [5, 1.1],
    "force_words_ids": [[5]],
    "forced_bos_token_id": 0,
    "forced_decoder_ids": [[1, 5]],
    "forced_eos_token_id": 2,
    "guidance_scale": 2.0,
    "min_length": 5,
    "min_new_tokens": 5,
    "no_repeat_ngram_size": 3,
    "num_beams": 4,
    "penalty_alpha": 0.6,
    "repetition_penalty": 1.3,
    "sequence_bias": [[[5], -10.0]],
    "stop_strings": ["x"],
    "suppress_tokens": [1, 2],
    "watermarking_config": {"bias": 2.0},
}


def test_every_setting_is_tried() -> None:
    assert sorted(CHANGING) == sorted(_NEUTRAL)


@pytest.mark.parametrize("name", sorted(CHANGING))
def test_a_setting_that_changes_tokens(name: str) -> None:
    [told] = ignored_settings({name: CHANGING[name]})
    assert told.startswith(f"{name} = ")
    assert ignored_settings(dict.fromkeys((name,))) == ()
    for neutral in _NEUTRAL[name]:
        assert ignored_settings({name: neutral}) == ()


def test_values_are_shown_and_cut() -> None:
    assert ignored_settings({"repetition_penalty": 1.3, "suppress_tokens": [1, 2]}) == (
        "repetition_penalty = 1.3",
        "suppress_tokens = [1, 2]",
    )
    [told] = ignored_settings({"suppress_tokens": list(range(1000))})
    assert len(told) == len("suppress_tokens = ") + 60
    assert told.endswith("…")
    [told] = ignored_settings({"stop_strings": ["a\n\x1b"]})
    assert told == r'stop_strings = ["a\n\u001b"]'


def test_what_changes_no_greedy_token_is_not_told_of() -> None:
    plain = {"bos_token_id": 1, "eos_token_id": [2], "do_sample": False, "temperature": 0.1, "top_p": 0.9}
    assert ignored_settings(plain | {"repetition_penalty": 1.0, "num_beams": 1, "max_length": 20}) == ()
