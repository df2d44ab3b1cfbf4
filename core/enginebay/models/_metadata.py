"""The metadata of a GGUF file read by short name, each value checked, and no key that matters passed over.

Names of the keys: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from enginebay.errors import ModelError
from enginebay.models._gguf import GgufFile

ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}

_LARGEST = float(np.finfo(np.float32).max)
_MATTER = ("rope.", "attention.")  # beginnings of keys that say what is computed, as does the ending _scale
_NEUTRAL: dict[str, float | bool] = {
    "attention.causal": True,
    "attention.clamp_kqv": 0.0,
    "attention.max_alibi_bias": 0.0,
    "attention.sliding_window": 0,
    "embedding_scale": 1.0,
    "logit_scale": 1.0,
    "residual_scale": 1.0,
    "rope.scaling.attn_factor": 1.0,
}
"""Values with which such a key changes nothing."""
_INFORMATION = frozenset({"rope.scaling.finetuned", "rope.scaling.original_context_length"})


class Metadata:
    """The architecture's own keys of a GGUF file, read by short name, with errors that name the key."""

    def __init__(self, file: GgufFile) -> None:
        self.file = file
        self._read: set[str] = set()
        self.architecture = self._typed("general.architecture", str, None)
        if self.architecture not in ARCHITECTURES:
            known = ", ".join(sorted(ARCHITECTURES))
            raise ModelError(f"{file.path}: architecture '{self.architecture}' cannot be converted; known: {known}")

    def integer(self, key: str, default: int | None = None) -> int:
        """A whole number that is not negative."""
        return int(self._typed(f"{self.architecture}.{key}", int, default))

    def size(self, key: str, default: int | None = None, *, largest: int = 2**31 - 1) -> int:
        """A whole number from 1 to ``largest``."""
        value = self.integer(key, default)
        if not 1 <= value <= largest:
            raise self._wrong(f"{self.architecture}.{key}", value)
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number above 0, as the decimal that its author wrote (the file holds it as float32)."""
        value = self._typed(f"{self.architecture}.{key}", (int, float), default)
        if not 0 < value <= _LARGEST or not np.float32(value):
            raise self._wrong(f"{self.architecture}.{key}", value)
        return float(str(np.float32(value)))

    def text(self, key: str, default: str) -> str:
        """A text."""
        return str(self._typed(f"{self.architecture}.{key}", str, default))

    def refuse_unread(self) -> None:
        """Raise ``ModelError`` for a key about positions, attention or a scale that nothing has read: what it asks for
        would be lost without a word.
        """
        prefix = f"{self.architecture}."
        for name, value in sorted(self.file.metadata.items(), key=lambda item: item[0]):
            key = name.removeprefix(prefix)
            matters = name.startswith(prefix) and (key.startswith(_MATTER) or key.endswith("_scale"))
            if not matters or name in self._read or key in _INFORMATION:
                continue
            neutral = _NEUTRAL.get(key)
            if neutral is None or not isinstance(value, int | float) or value != neutral:
                raise ModelError(f"{self.file.path}: the metadata key '{name}' ({value!r}) cannot be converted")

    def _typed(self, key: str, kind: type | tuple[type, ...], default: Any) -> Any:
        self._read.add(key)
        value = self.file.metadata.get(key, default)
        if value is None:
            raise ModelError(f"{self.file.path}: the metadata key '{key}' is missing")
        if (
            not isinstance(value, kind)
            or isinstance(value, bool)
            or (isinstance(value, int | float) and not value >= 0)
        ):
            raise self._wrong(key, value)
        return value

    def _wrong(self, key: str, value: object) -> ModelError:
        return ModelError(f"{self.file.path}: the metadata key '{key}' cannot be {value!r}")


def token_roles(file: GgufFile, vocab_size: int) -> tuple[int | None, tuple[int, ...], int | None]:
    """The ids of bos, of all that end an answer, and of padding; all below ``vocab_size``.

    An id of padding outside the vocabulary is none: nothing is padded here. Any other raises ``ModelError``.
    """

    def role(name: str) -> int | None:
        key = f"tokenizer.ggml.{name}_token_id"
        value = file.metadata.get(key)
        if value is None or (type(value) is int and 0 <= value < vocab_size):
            return value
        if name == "padding":
            return None
        raise ModelError(f"{file.path}: the metadata key '{key}' is {value!r}, and ids go from 0 to {vocab_size - 1}")

    ends = dict.fromkeys(i for i in (role("eos"), role("eot"), role("eom")) if i is not None)
    return role("bos"), tuple(ends), role("padding")
