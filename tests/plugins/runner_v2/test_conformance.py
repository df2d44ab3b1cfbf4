"""Runner v2 keeps what is asked of every runner: enginebay's own suite, as Python code and natively."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import pytest

from enginebay.testing import RunnerSuite


class TestLlamaAsCode(RunnerSuite):
    name = "v2"
    options: ClassVar = {"compile": "off"}

    @pytest.fixture
    def model_folder(self, tiny: Callable[[str], Path]) -> Path:
        return tiny("llama")


class TestLlamaNatively(RunnerSuite):
    name = "v2"
    options: ClassVar = {"compile": "wait"}

    @pytest.fixture
    def model_folder(self, tiny: Callable[[str], Path]) -> Path:
        return tiny("llama")


class TestQwen2WithMixedLayers(RunnerSuite):
    name = "v2"
    options: ClassVar = {"compile": "wait"}

    @pytest.fixture
    def model_folder(self, tiny: Callable[[str], Path]) -> Path:
        return tiny("qwen2-mixed-window")
