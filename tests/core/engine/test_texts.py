"""Where the tokenizer and the chat template are read from, and what a broken template is: an error, not "none"."""

from __future__ import annotations

import json
import shutil
import weakref
from pathlib import Path
from typing import Any

import psutil
import pytest

from enginebay import LLM
from enginebay.errors import ModelError
from support.fake_engine import TEMPLATE
from support.fake_engines import Installed

HI = [{"role": "user", "content": "say:hi"}]


def config_with(fake: Installed, tokenizer: Path) -> dict[str, Any]:
    config = fake.config()
    return {**config, "model": {**config["model"], "tokenizer": str(tokenizer)}}


def test_a_broken_template_is_an_error(fake: Installed) -> None:
    (fake.model / "chat_template.jinja").write_text("{% for x in")
    with LLM(fake.config()) as llm:
        with pytest.raises(ModelError, match=r"the chat template in .*chat_template\.jinja is broken"):
            _ = llm.has_chat_template
        with pytest.raises(ModelError, match="is broken"):
            llm.chat(HI)


def test_no_template_is_no_error_until_it_is_needed(fake: Installed) -> None:
    (fake.model / "tokenizer_config.json").unlink()
    with LLM(fake.config()) as llm:
        assert not llm.has_chat_template
        with pytest.raises(ModelError, match="has no chat template: give it plain prompts, or use a chat model"):
            llm.chat(HI)


@pytest.mark.parametrize("as_file", [True, False])
def test_the_template_beside_a_tokenizer_that_was_named_comes_first(
    fake: Installed, tmp_path: Path, as_file: bool
) -> None:
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    shutil.copy(fake.model / "tokenizer.json", folder)
    named = folder / "tokenizer.json" if as_file else folder
    with LLM(config_with(fake, named)) as llm:  # it has none: the model's own
        assert llm.has_chat_template
        assert llm.chat(HI)[0].text == "hi"
    other = TEMPLATE.replace("m['content']", "'say:other'")
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": other}))
    with LLM(config_with(fake, named)) as llm:
        assert llm.chat(HI)[0].text == "other"


def _template_processes() -> list[int]:
    children = psutil.Process().children()
    return [child.pid for child in children if "enginebay.limited._templates" in child.cmdline()]


def test_a_closed_engine_leaves_no_process_of_its_template(fake: Installed, monkeypatch: pytest.MonkeyPatch) -> None:
    # not shared with the templates of other tests, which are still there
    monkeypatch.setattr("enginebay.text._template._shared", weakref.WeakValueDictionary())
    before = _template_processes()
    with LLM(fake.config()) as llm:
        llm.chat(HI)
        assert len(_template_processes()) == len(before) + 1
    assert _template_processes() == before
    assert llm is not None  # and it is not the end of the object that does it
