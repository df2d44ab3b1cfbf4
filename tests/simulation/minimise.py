"""Makes a failing plan small: takes away requests, faults and wishes for as long as it goes on to fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from msgspec.structs import replace

from simulation.plan import Fault, Plan, Want

__all__ = ["minimise"]


def minimise(plan: Plan, fails: Callable[[Plan], bool], most: int = 2000) -> Plan:
    """The smallest plan found that still ``fails``, after at most ``most`` runs."""
    runs = 0
    smaller = True
    while smaller and runs < most:
        smaller = False
        for candidate in _smaller(plan):
            runs += 1
            if runs > most:
                break
            if fails(candidate):
                plan, smaller = candidate, True
                break
    return plan


def _smaller(plan: Plan) -> Iterator[Plan]:
    """Plans that are a little smaller, the largest cuts first."""
    for count in (len(plan.wants) // 2, 1):
        for start in range(0, len(plan.wants), count) if count else ():
            if len(plan.wants) > count:
                yield _without(plan, start, start + count)
    for index in range(len(plan.faults)):
        yield replace(plan, faults=plan.faults[:index] + plan.faults[index + 1 :])
    for index, want in enumerate(plan.wants):
        for plainer in _plainer(want):
            yield replace(plan, wants=[*plan.wants[:index], plainer, *plan.wants[index + 1 :]])
    for index, fault in enumerate(plan.faults):
        for sooner in _sooner(fault):
            yield replace(plan, faults=[*plan.faults[:index], sooner, *plan.faults[index + 1 :]])
    if plan.stages > 1:
        yield replace(plan, stages=1)
    if plan.depth > 1:
        yield replace(plan, depth=plan.depth - 1, stages=min(plan.stages, plan.depth - 1))
    for name, plain in (("policy", "fcfs"), ("speculates", False), ("reader", 1), ("max_num_batched_tokens", 200)):
        if getattr(plan, name) != plain:
            yield replace(plan, **{name: plain})


def _without(plan: Plan, start: int, stop: int) -> Plan:
    return replace(plan, wants=plan.wants[:start] + plan.wants[stop:])


def _plainer(want: Want) -> Iterator[Want]:
    blank = Want(at=1.0, prompt=want.prompt, max_tokens=want.max_tokens)
    for name in Want.__struct_fields__:
        if getattr(want, name) != getattr(blank, name):
            yield replace(want, **{name: getattr(blank, name)})
    if len(want.prompt) > 1:
        yield replace(want, prompt=want.prompt[: len(want.prompt) // 2])
        yield replace(want, prompt=want.prompt[:-1])
    if want.max_tokens > 1:
        yield replace(want, max_tokens=want.max_tokens // 2)
        yield replace(want, max_tokens=want.max_tokens - 1)


def _sooner(fault: Fault) -> Iterator[Fault]:
    if fault.at > 0:
        yield replace(fault, at=fault.at // 2)
        yield replace(fault, at=fault.at - 1)
    if fault.delay:
        yield replace(fault, delay=0.0)
