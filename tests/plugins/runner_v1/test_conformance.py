"""Runner v1 keeps what is asked of every runner: enginebay's own suite, once per kind of model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from enginebay.testing import RunnerSuite


class TestLlama(RunnerSuite):
    name = "v1"

    @pytest.fixture
    def model_folder(self, tiny: Callable[[str], Path]) -> Path:
        return tiny("llama")


class TestMistralWithWindow(RunnerSuite):
    name = "v1"

    @pytest.fixture
    def model_folder(self, tiny: Callable[[str], Path]) -> Path:
        return tiny("mistral-window")


class TestQwen2WithMixedLayers(RunnerSuite):
    name = "v1"

    @pytest.fixture
    def model_folder(self, tiny: Callable[[str], Path]) -> Path:
        return tiny("qwen2-mixed-window")


class TestQwen3(RunnerSuite):
    name = "v1"

    @pytest.fixture
    def model_folder(self, tiny: Callable[[str], Path]) -> Path:
        return tiny("qwen3")
