"""Settings of generation_config.json that change which tokens are greedy, and that no request of ours takes over.

They are told of, not applied: a request carries its own sampling, and what it carries is all that is done.
Names and neutral values: https://huggingface.co/docs/transformers/main_classes/text_generation.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from enginebay.errors import one_line

_NEUTRAL: dict[str, tuple[object, ...]] = {
    "bad_words_ids": ([],),
    "begin_suppress_tokens": ([],),
    "dola_layers": (),
    "encoder_no_repeat_ngram_size": (0,),
    "encoder_repetition_penalty": (1,),
    "exponential_decay_length_penalty": (),
    "force_words_ids": ([],),
    "forced_bos_token_id": (),
    "forced_decoder_ids": ([],),
    "forced_eos_token_id": (),
    "guidance_scale": (1,),
    "min_length": (0,),
    "min_new_tokens": (0,),
    "no_repeat_ngram_size": (0,),
    "num_beams": (1,),
    "penalty_alpha": (0,),
    "repetition_penalty": (1,),
    "sequence_bias": ({}, []),
    "stop_strings": ([],),
    "suppress_tokens": ([],),
    "watermarking_config": (),
}
"""Setting → the values, beside null, that change nothing."""
_MAX_VALUE = 60


def ignored_settings(generation: Mapping[str, Any]) -> tuple[str, ...]:
    """``"name = value"`` of each setting that is set and not applied, by name; a long value is cut."""
    told = []
    for name, neutral in _NEUTRAL.items():
        value = generation.get(name)
        if value is not None and value not in neutral:
            told.append(f"{name} = {one_line(json.dumps(value), _MAX_VALUE)}")
    return tuple(told)
