"""``enginebay chat``: talk to a model in the terminal; works in a pipe too."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from enginebay.cli._connect import connect_options
from enginebay.cli._grouped import GroupedCommand
from enginebay.cli._lines import shown
from enginebay.cli._options import config_options
from enginebay.cli._sampling import engine, sampling_options, sampling_params
from enginebay.cli._signals import interrupts
from enginebay.cli._style import printable
from enginebay.errors import InvalidRequest, RequestTooLong

if TYPE_CHECKING:
    from enginebay.engine import LLM
    from enginebay.messages import SamplingParams

_HELP = "/reset forgets the conversation, /exit ends; Ctrl-C stops an answer, Ctrl-D ends"


@click.command("chat", cls=GroupedCommand)
@sampling_options
@connect_options
@click.option("--system", help="The system message of the conversation.")
@click.option("--trace", type=click.Path(path_type=Path), metavar="FILE", help="Write the trace to FILE, anew.")
@config_options
@click.pass_context
def command(
    ctx: click.Context,
    /,
    system: str | None,
    trace: Path | None,
    config: Path | None,
    sets: tuple[str, ...],
    connect: str | None,
    keys: Path | None,
    tokenizer: Path | None,
    **sampling: Any,
) -> None:
    """Talk to the model: one line a turn, answers as they come.

    /reset forgets the conversation, /exit ends; Ctrl-C stops an answer, Ctrl-D ends.

    Exit codes: 0, 1 when a request is refused or failed, 2 when config or model are, 3 when the start failed, 4 when a
    worker was lost, 5 when one hangs, 70 on an internal error or when no engine answers, 130 and 143 on a signal.

    \b
    Examples:
      enginebay chat
      enginebay chat --system "You answer in one sentence." --temperature 0.7
    """
    params = sampling_params(**sampling)
    with engine(config, sets, trace, connect=connect, keys=keys, tokenizer=tokenizer) as llm:
        ok = Conversation(llm, params, system, interactive=sys.stdin.isatty()).run()
    ctx.exit(0 if ok else 1)


class Conversation:
    """The turns so far, and the loop that adds to them."""

    def __init__(self, llm: LLM, params: SamplingParams, system: str | None, *, interactive: bool) -> None:
        self._llm = llm
        self._params = params
        self._opening = [] if system is None else [{"role": "system", "content": system}]
        self._messages = list(self._opening)
        self._interactive = interactive
        self._ok = True

    def run(self) -> bool:
        """Until the input ends, or /exit; whether every answer came."""
        if self._interactive:
            import readline  # noqa: F401  # gives input() a history and line editing

            click.echo(_HELP, err=True)
            interrupts.quiet()
        while (line := self._read()) is not None:
            if line == "/exit":
                break
            if line == "/reset":
                self._messages = list(self._opening)
                self._note("forgotten")
            elif line.startswith("/") and line[1:].isalpha():
                self._note(f"unknown command {printable(line)}; {_HELP}")
            elif line:
                self._turn(line)
        return self._ok

    def _read(self) -> str | None:
        while True:
            try:
                return input("> " if self._interactive else "").strip()
            except EOFError:
                if self._interactive:
                    click.echo()
                return None
            except KeyboardInterrupt:
                if not self._interactive:
                    raise
                interrupts.dealt_with()
                click.echo()  # a line that was begun is dropped

    def _turn(self, line: str) -> None:
        """One question and its answer. What was said of a stopped answer stays; a refused question does not."""
        asked = [*self._messages, {"role": "user", "content": line}]
        try:
            stream = self._llm.chat_stream(asked, self._params)
        except InvalidRequest as error:
            self._ok = self._ok and self._interactive
            hint = "; /reset forgets the conversation" if isinstance(error, RequestTooLong) else ""
            self._note(f"{error}{hint}")
            return
        texts: list[str] = []
        failed = None
        try:
            with stream, shown() as answered:
                for output in stream:
                    texts.append(output.text)
                    answered.text(output.text)
                    failed = output.error or failed
        except KeyboardInterrupt:
            if not self._interactive:
                raise
            interrupts.dealt_with()
        click.echo()
        if failed is not None:
            self._ok = False
            self._note(f"the request failed: {failed}")
        self._messages = [*asked, {"role": "assistant", "content": "".join(texts)}]

    def _note(self, text: str) -> None:
        click.echo(f"enginebay: {printable(text)}", err=True)
