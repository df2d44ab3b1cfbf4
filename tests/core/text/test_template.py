"""Chat templates and their files are strangers' data: whatever is wrong with them is one line of ours."""

from __future__ import annotations

from pathlib import Path

import pytest

from enginebay.errors import InvalidRequest, ModelError
from enginebay.text import ChatTemplate, Tokenizer
from support.tiny_tokenizers import KINDS


@pytest.mark.parametrize(
    "source",
    [
        "{% break %}",
        "{% for a in [1] %}" * 40 + "{% endfor %}" * 40,
        "{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}",
        "{% if 1 %}" * 500 + "{% endif %}" * 500,
        "{{ 1" + "+1" * 5000 + " }}",
        "{{ 1" + "|string" * 3000 + " }}",
        "{{ " + "9" * 5000 + " }}",
        "{{ 1|nofilter }}",
        "{% generation %}",
    ],
)
def test_a_template_that_does_not_compile(source: str) -> None:
    with pytest.raises(ModelError) as caught:
        ChatTemplate(source, "here")
    message = str(caught.value)
    assert message.startswith("the chat template in here is broken: ")
    assert message.isprintable()
    assert len(message) < 1100


def test_the_line_says_what_is_wrong() -> None:
    with pytest.raises(ModelError) as caught:
        ChatTemplate("{{ 1|nofilter }}", "here")
    assert str(caught.value) == "the chat template in here is broken: No filter named 'nofilter'."


def test_a_failure_of_several_lines_is_one_line() -> None:
    template = ChatTemplate("{{ {}[messages[0].content] | first | attr('x') }}{{ nothing.at_all }}", "here")
    with pytest.raises(InvalidRequest) as caught:
        template.render([{"role": "user", "content": "a\nb\x1b[31m"}])
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("config", "error"),
    [
        ("[" * 100_000, "{path} is not valid JSON: maximum recursion depth exceeded"),
        ('{"a": ' + "9" * 5000 + "}", "{path} is not valid JSON: Exceeds the limit (4300 digits)"),
        ("[]", "{path} holds no JSON object"),
        ('{"chat_template": [{"name": ["a"], "template": "x"}]}', "the model in {folder} has no chat template: "),
        ('{"chat_template": [1]}', "the model in {folder} has no chat template: "),
        ('{"chat_template": 5}', "the model in {folder} has no chat template: "),
        ('{"chat_template": "{% break %}"}', "the chat template in {path} is broken: 'break' outside loop"),
    ],
)
def test_damaged_files(tmp_path: Path, config: str, error: str) -> None:
    path = tmp_path / "tokenizer_config.json"
    path.write_text(config)
    with pytest.raises(ModelError) as caught:
        ChatTemplate.from_folder(tmp_path)
    assert str(caught.value).startswith(error.format(path=path, folder=tmp_path))
    # plain prompts need no template
    (tmp_path / "tokenizer.json").write_text(KINDS["byte-level"]()._plain.to_str())
    assert Tokenizer.from_folder(tmp_path).encode("the")


def test_a_template_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(ModelError) as caught:
        ChatTemplate.from_folder(tmp_path)
    assert str(caught.value).startswith(f"cannot read {tmp_path / 'chat_template.jinja'}: 'utf-8' codec can't decode")
