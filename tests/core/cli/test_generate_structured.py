"""The options of ``generate`` that give an answer its shape: what they become, and what is wrong with them."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from enginebay.cli import group, main
from enginebay.cli._structured import structured_output
from enginebay.messages import StructuredOutput


def shape_of(*arguments: str) -> StructuredOutput | None:
    """What these arguments become."""
    found = group.get_command(click.Context(group), "generate")
    assert found is not None
    options = found.make_context("generate", ["hi", *arguments]).params
    return structured_output(**{name: options[name] for name in ("json_schema", "regex", "grammar", "choice")})


def test_each_option_becomes_a_form(tmp_path: Path) -> None:
    schema, grammar = tmp_path / "schema.json", tmp_path / "grammar.lark"
    schema.write_text('{"type":"object"}')
    grammar.write_text('start: "é"')
    assert shape_of() is None
    assert shape_of("--json-schema", str(schema)) == StructuredOutput(json_schema='{"type":"object"}')
    assert shape_of("--json-schema", ' {"a":1}') == StructuredOutput(json_schema=' {"a":1}')
    assert shape_of("--regex", "a+") == StructuredOutput(regex="a+")
    assert shape_of("--grammar", str(grammar)) == StructuredOutput(ebnf='start: "é"')
    assert shape_of("--choice", "yes", "--choice", "no") == StructuredOutput(choice=("yes", "no"))


def complaint(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The last line of what is said of these arguments, before any engine starts."""
    with pytest.raises(SystemExit) as caught:
        main(["generate", "hi", *arguments])
    assert caught.value.code == 2
    return capsys.readouterr().err.splitlines()[-1]


def test_what_is_wrong_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    both = complaint(capsys, "--regex", "a", "--choice", "b")
    assert both.endswith("an answer has one shape: give --regex or --choice, not both")
    missing = complaint(capsys, "--json-schema", str(tmp_path / "no.json"))
    assert missing.endswith(
        f"{tmp_path}/no.json cannot be read: No such file or directory; a schema itself begins with {{"
    )
    (tmp_path / "latin").write_bytes(b"start: \xe9")
    assert complaint(capsys, "--grammar", str(tmp_path / "latin")).endswith(f"{tmp_path}/latin is no UTF-8 at byte 7")
    (tmp_path / "huge").write_bytes(b" " * ((1 << 20) + 1))
    assert complaint(capsys, "--grammar", str(tmp_path / "huge")).endswith(
        f"{tmp_path}/huge has more than 1048576 bytes"
    )
