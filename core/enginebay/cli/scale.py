"""``enginebay scale``: spread each copy of the model over another number of workers, while requests wait."""

from __future__ import annotations

from pathlib import Path

import click

from enginebay.cli._connect import ask_change, keys_option, remote
from enginebay.cli._grouped import GroupedCommand
from enginebay.cli.swap import STARTING, show


@click.command("scale", cls=GroupedCommand)
@click.argument("address", required=False)
@click.option("--tensor-parallel", type=click.IntRange(min=1), metavar="N", help="Workers that share each layer.")
@click.option("--pipeline-parallel", type=click.IntRange(min=1), metavar="N", help="Stages of layers.")
@click.option(
    "--data-parallel", type=click.IntRange(min=1), metavar="N", help="Copies of the model; no fewer than run."
)
@click.option("--exclusive", is_flag=True, help="Stop the old workers before the new ones are started.")
@keys_option
def command(
    address: str | None,
    tensor_parallel: int | None,
    pipeline_parallel: int | None,
    data_parallel: int | None,
    exclusive: bool,
    keys: Path | None,
) -> None:
    """Scale the engine at ADDRESS; without it, the only one of this user. Its requests wait, and lose nothing.

    It is refused when a request that runs would not fit into the KV cache that there is then. More copies are started
    beside those that run, which serve meanwhile.

    Exit codes: 0, 1 when it cannot be now (ask again later), 2 when it is refused, 3 when the workers do not start, 70
    when no engine answers.

    \b
    Examples:
      enginebay scale --tensor-parallel 2
      enginebay scale --data-parallel 3
    """
    from enginebay.messages import Scale

    if tensor_parallel is None and pipeline_parallel is None and data_parallel is None:
        raise click.UsageError("name a size: --tensor-parallel N, --pipeline-parallel N, --data-parallel N")
    asked = Scale(
        tensor_parallel_size=tensor_parallel,
        pipeline_parallel_size=pipeline_parallel,
        data_parallel_size=data_parallel,
        exclusive=exclusive,
    )
    with remote(address, keys) as client:
        show(ask_change(client, asked, slow=STARTING).facts)
