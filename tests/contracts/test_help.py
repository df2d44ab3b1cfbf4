"""``--help`` teaches: every command says what it is for, shows a command line that works, and names its exit codes."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from enginebay.cli import group
from enginebay.config import load
from enginebay.errors import EnginebayError
from enginebay.plugins import PluginHost


def _commands(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from _commands(below, (*path, name))


ALL = dict(_commands(group))


def _help(path: tuple[str, ...]) -> str:
    result = CliRunner().invoke(group, [*path, "--help"], terminal_width=100)
    assert result.exit_code == 0
    return result.stdout


@pytest.mark.parametrize("path", sorted(ALL), ids=" ".join)
def test_help_shows_a_command_line_and_exit_codes(path: tuple[str, ...]) -> None:
    text = _help(path)
    assert re.search(rf"^    ?enginebay{''.join(f' {name}' for name in path)}\b.*$", text, re.MULTILINE), text
    codes = re.search(r"Exit codes: (.+?)(?:\n\n|\Z)", text, re.DOTALL)
    assert codes, text
    assert re.match(r"0\b", codes[1]), "0 comes first"


@pytest.mark.parametrize("path", sorted(ALL), ids=" ".join)
def test_every_option_says_what_it_does(path: tuple[str, ...]) -> None:
    for parameter in ALL[path].params:
        if isinstance(parameter, click.Option) and not parameter.hidden:
            assert parameter.help, f"{' '.join(path)} {parameter.opts[0]}"


@pytest.mark.parametrize("path", sorted(ALL), ids=" ".join)
def test_options_in_examples_exist(path: tuple[str, ...]) -> None:
    for line in re.findall(r"^ +enginebay (?!COMMAND)(.+)$", _help(path), re.MULTILINE):
        words = line.partition("  ")[0].partition(" -- ")[0].split()
        named = [tuple(words[:count]) for count in (2, 1) if tuple(words[:count]) in ALL]
        assert named, line
        known = {option for parameter in ALL[named[0]].params for option in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= known, line


@pytest.mark.parametrize("path", sorted(ALL), ids=" ".join)
def test_keys_in_help_exist(path: tuple[str, ...]) -> None:
    """Options of plugins too, of the one that the line names."""
    for line in re.findall(r"^ +enginebay (?!COMMAND)(.+)$", _help(path), re.MULTILINE):
        words = shlex.split(line.partition("  ")[0])
        sets = [value for word, value in itertools.pairwise(words) if word == "--set"]
        config = load(None, sets=sets, environ={}).config
        named = dict(word.split("=", 1) for word in words[1:] if re.fullmatch(r"(scheduler|runner|executor)=\w+", word))
        scheduler = named.get("scheduler", config.scheduler.use)
        PluginHost().load_scheduler(scheduler, config.scheduler.options)


def test_the_first_help_names_every_exit_code() -> None:
    classes: list[type[EnginebayError]] = [EnginebayError, *_below(EnginebayError)]
    text = _help(())
    for code in sorted({cls.exit_code for cls in classes} | {0, 130, 143}):
        assert re.search(rf"\b{code}\b", text), code


def _below(cls: type[EnginebayError]) -> Iterator[type[EnginebayError]]:
    for one in cls.__subclasses__():
        yield one
        yield from _below(one)
