"""How a command goes to one group after the other: to each its own part of it, and a restart as a rolling one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future

from enginebay.engine.client import InProcessClient
from enginebay.engine.control.tensors import Command, RestartFrom
from enginebay.engine.core import EngineCore
from enginebay.engine.replicas.gathering import for_each_group
from enginebay.engine.replicas.placement import Placement
from enginebay.messages import ControlDone, Drain, RestartWorkers, Resume

__all__ = ["sender"]

Send = Callable[[int], Future[ControlDone]]


def sender(
    command: Command,
    groups: Sequence[int],
    cores: Sequence[EngineCore],
    clients: Sequence[InProcessClient],
    places: Placement,
) -> Send:
    """What sends the command to the i-th of ``groups``, which are numbers of ``cores`` and ``clients``.

    Raises ``InvalidRequest`` for one that cannot be dealt out.
    """
    if isinstance(command, RestartWorkers):
        return _rolling(groups, cores, clients, places)
    if isinstance(command, Drain | Resume):
        places.settle(isinstance(command, Drain))  # each group says itself whether its requests have ended
    commands = for_each_group(command, [cores[group].parts.num_ranks for group in groups])
    return lambda index: clients[groups[index]].control(commands[index])


def _rolling(
    groups: Sequence[int], cores: Sequence[EngineCore], clients: Sequence[InProcessClient], places: Placement
) -> Send:
    """Restarts a group: new requests go to the others meanwhile, one of which lends its weights."""

    def restart(index: int) -> Future[ControlDone]:
        group = groups[index]
        others = [one for one in groups if one != group and clients[one].is_alive()]
        places.rest(group, True)
        try:
            answer = clients[group].control(RestartFrom(lender=cores[others[0]].lender if others else None))
        except BaseException:
            places.rest(group, False)
            raise
        answer.add_done_callback(lambda _: places.rest(group, False))
        return answer

    return restart
