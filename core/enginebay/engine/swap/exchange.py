"""A swap, a change of scale and a restart on purpose, carried out in the core's thread while its requests wait.

Whatever goes wrong before the flip leaves the old parts in force; after it the new ones are, and nothing is in between.
Requests wait in the ledger, which no scheduler and no worker can change.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Final, TypeVar

from enginebay.engine.admission.admit import Ask
from enginebay.engine.death import OrDie
from enginebay.engine.guard import GuardedScheduler
from enginebay.engine.lending import Lender
from enginebay.engine.parts import CoreParts
from enginebay.engine.rebirth import Rebirth
from enginebay.engine.recovery import NoWayBack, Setback
from enginebay.engine.startup.ground import Ground
from enginebay.engine.startup.plan import Plan
from enginebay.engine.stopping import WorkersEnd
from enginebay.engine.swap.fits import check_one, check_served, check_sizes
from enginebay.engine.swap.rebuild import Rebuild
from enginebay.errors import (
    CapabilityError,
    EnginebayError,
    EngineBusy,
    EngineDead,
    PolicyFailed,
    StartFailed,
    WorkerLost,
    in_words,
    is_interrupt,
)
from enginebay.messages import ControlDone, EngineRequest, Scale, Swap

__all__ = ["Exchange"]

_log = logging.getLogger(__name__)

_GOES_ON: Final = "; what was in force before goes on"
_THE_END: Final = ". The engine stops"
"""What the error of a policy says that runs."""

E = TypeVar("E", bound=EnginebayError)


class Exchange:
    """One group's. ``run`` runs a step, of those in flight at least; ``or_die`` ends the engine of what is raised."""

    def __init__(
        self, parts: CoreParts, rebirth: Rebirth, workers_end: WorkersEnd, or_die: OrDie, run: Callable[[], bool]
    ) -> None:
        self._parts = parts
        self._requests, self._rebirth, self._pipeline = rebirth.requests, rebirth, rebirth.pipeline
        self._workers_end = workers_end
        self._or_die, self._run = or_die, run
        self._has_other_limits = False

    def rechecked(self, ask: Ask) -> Ask:
        """The request, which was validated, perhaps for parts that are no more. Raises ``InvalidRequest`` when it does
        not go with those of now."""
        if self._has_other_limits:
            check_one(len(ask.prompt_token_ids), ask.params, self._parts.limits)
        return ask

    def swap(self, command: Swap | Scale) -> ControlDone:
        """Put other parts in the place of those that run. Raises what it is refused for; then nothing has changed.

        Answered with what is in force differently from before, and the generation; with nothing if that is in force.
        """
        name = str(command.__struct_config__.tag)
        if (rebuild := self._parts.rebuild) is None:
            raise self._fixed()
        before = dict(self._parts.in_force)
        with self._changing(name):
            with self._not_in_force():
                plan = rebuild.wanted(command)
            if rebuild.is_in_force(plan):
                return ControlDone()
            features = plan.runner.plugin.capabilities.features
            served = replace(self._parts.limits, runner=plan.runner.name_and_version, features=features)
            check_served(self._live(), served)
            if rebuild.needs_workers(plan):
                self._other_workers(name, rebuild, plan, exclusive=command.exclusive)
            else:
                self._other_scheduler(name, rebuild, plan)
        changed = {key: value for key, value in self._parts.in_force.items() if before.get(key) != value}
        return ControlDone(facts={**changed, "generation": str(self._parts.generation.current)})

    def restart(self, lender: Lender | None = None) -> ControlDone:
        """Start the workers anew, with weights of ``lender`` where it can lend them; requests wait meanwhile."""
        parts = self._parts
        if parts.respawn is None:
            raise self._fixed()
        if lender is not None and not (parts.runner_capabilities.send_weights and _can_lend(lender)):
            lender = None
        if parts.life.given and lender is None:
            raise CapabilityError(
                f"the weights in force{parts.life.named} were given as tensors, and new workers could not have them: "
                "update the weights from a folder first"
            )
        with self._changing("restart"):
            self._settle("restart")
            with self._or_die:
                self._rebirth.restart(lender)
        return ControlDone(facts={"restarted": str(parts.num_ranks)})

    def _other_scheduler(self, name: str, rebuild: Rebuild, plan: Plan) -> None:
        """No worker is touched: what they hold of an older generation they drop."""
        self._settle(name)
        try:
            with self._not_in_force():
                others = rebuild.with_scheduler(plan, self._parts)
                scheduler = self._rebirth.filled(others)
        except CapabilityError as error:
            raise _said(error, f"{error}{_GOES_ON}") from error
        self._flip(others, scheduler)

    def _other_workers(self, name: str, rebuild: Rebuild, plan: Plan, *, exclusive: bool) -> None:
        """Beside the old ones where there is room; else these go first, and come again when the new ones fail."""
        why, old = "it was asked for" if exclusive else rebuild.no_room(plan), self._parts.watch
        self._settle(name)
        generation = self._parts.generation.current + 1
        if why:
            _log.info("%s%s: the old workers go before the new ones come: %s", self._label, name, why)
            with self._or_die, self._rebirth.meanwhile.on_purpose(self._parts.watch):
                self._rebirth.give_way()
                rebuild.retire()
        try:
            with ExitStack() as serving, self._not_in_force():
                others = rebuild.with_workers(plan, self._parts, generation, partial(self._begun, serving))
            try:  # requests may have come meanwhile
                check_served(self._live(), others.limits)
                check_sizes(self._live(), others.limits, longest=self._parts.max_model_len)
                with self._not_in_force():
                    scheduler = self._rebirth.filled(others)
                if not why:
                    self._check_old(name)
            except BaseException:
                self._give_up(others)
                raise
        except BaseException as error:
            self._workers_end.newcomer = None
            if why:
                self._bring_back(generation)
            if isinstance(error, WorkerLost):
                raise StartFailed(f"{error}{_GOES_ON}") from error
            if is_interrupt(error) or isinstance(error, (EngineBusy, EngineDead)):
                raise
            if not isinstance(error, EnginebayError):
                raise StartFailed(f"{in_words(error)}{_GOES_ON}") from error
            raise _said(error, f"{error}{_GOES_ON}") from error
        self._flip(others, scheduler)
        self._workers_end.newcomer = None
        self._has_other_limits = True
        try:
            if not why:
                with self._rebirth.meanwhile.on_purpose(old, move=False):
                    rebuild.retire()
        except (NoWayBack, EngineDead) as error:
            _log.warning("%s%s: the workers of before have ended, but not all is free: %s", self._label, name, error)
        except Exception as error:  # the new parts are in force: an executor that is gone cannot take that back
            _log.warning("%s%s: stopping the workers of before failed: %s", self._label, name, in_words(error))
        finally:
            rebuild.leave()

    def _give_up(self, others: CoreParts) -> None:
        """Parts that were started for nothing: what made them takes them back."""
        assert others.rebuild is not None, "it made them"
        try:
            with self._rebirth.meanwhile.on_purpose(others.watch, move=False):
                others.rebuild.retire()
        except (NoWayBack, EngineDead) as error:
            _log.warning("%sthe new workers have ended, but not all is free: %s", self._label, error)
        except Exception as error:  # why they are given up is what is told
            _log.warning("%sstopping the new workers failed: %s", self._label, in_words(error))
        finally:
            others.rebuild.leave()

    @property
    def _label(self) -> str:
        return self._parts.roster.label

    def _live(self) -> list[EngineRequest]:
        return [row.request() for row in self._requests.ledger]

    def _begun(self, serving: ExitStack, ground: Ground) -> None:
        """New workers are about to be spawned: clients are served, and who ends the engine ends them as well."""
        serving.enter_context(self._rebirth.meanwhile.on_purpose(ground.watch))
        self._workers_end.newcomer = ground.roster, ground.executor
        if self._rebirth.halted:
            raise EngineDead("the engine is closed; make a new one")

    def _bring_back(self, generation: int) -> None:
        """The old parts go on, on workers that are started again; ``generation`` was that of those that failed."""
        self._parts.generation.current = generation
        with self._or_die:
            self._rebirth.restart()

    def _flip(self, others: CoreParts, scheduler: GuardedScheduler) -> None:
        with self._or_die:
            self._rebirth.flip(others, scheduler)

    def _check_old(self, name: str) -> None:
        """A loss of the workers that are in force outranks what others were started for."""
        try:
            self._parts.watch.raise_if_lost()
        except WorkerLost as error:
            raise self._retry(name, error) from error

    def _settle(self, name: str) -> None:
        """Let the steps in flight end, and send no other. Raises ``EngineBusy`` when workers were lost meanwhile."""
        with self._or_die:
            self._pipeline.depth = 0
            try:
                while self._pipeline.in_flight:
                    self._run()
            except Setback as setback:
                self._pipeline.depth = self._parts.depth
                self._rebirth.after(setback, None)
                outranked: Setback | None = setback
            else:
                self._pipeline.depth = self._parts.depth
                outranked = None
        if outranked is not None:
            raise self._retry(name, outranked.error)

    @contextmanager
    def _changing(self, name: str) -> Iterator[None]:
        """Between two steps, when nothing else is under way; the state says so meanwhile."""
        life = self._parts.life
        if life.void or life.missing or life.updating:
            refusal = life.refusal()
            assert refusal is not None, "that is refused"
            raise refusal
        if self._rebirth.isolation.undecided:
            raise EngineBusy(f"{name} has to wait: workers were lost, and it is being found out of what; ask again")
        life.changing = name
        try:
            yield
        finally:
            life.changing = ""

    @contextmanager
    def _not_in_force(self) -> Iterator[None]:
        """The block asks a scheduler that may come: its failure would be the engine's end, and the one that runs is not
        at fault. Where that one is, it is."""
        try:
            yield
        except PolicyFailed as error:
            if self._rebirth.halted:
                raise
            fault, end, _ = str(error).partition(_THE_END)
            raise CapabilityError(f"{fault}: correct it, or name another scheduler" if end else fault) from error

    def _fixed(self) -> CapabilityError:
        parts = self._parts
        if parts.agreement is not None:
            return CapabilityError(
                f"{parts.executor_name} has an engine in every rank, and all of them would have to change at the same "
                "step: start them anew with the other config"
            )
        return CapabilityError(f"{parts.executor_name} does not start workers again: start the engine anew")

    @staticmethod
    def _retry(name: str, error: EnginebayError) -> EngineBusy:
        return EngineBusy(f"{name} was given up, because workers were lost meanwhile ({error}): ask again")


def _can_lend(lender: Lender) -> bool:
    refusal = lender.life.refusal()
    return refusal is None or lender.life.draining


def _said(error: E, text: str) -> E:
    """The same error in other words."""
    said = copy.copy(error)
    said.args = (text,)
    return said
