"""Registers the status sink ``pod_conditions``; light: the Kubernetes client is imported when the sink is made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from enginebay.hookspecs import hookimpl
from enginebay.interfaces import Options, StatusSinkContext, StatusSinkPlugin

if TYPE_CHECKING:
    from enginebay_pod_conditions.sink import PodConditions

_LABEL = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"


class PodOptions(Options):
    """What stands in ``[status.pod_conditions]``."""

    pod: Annotated[str, Field(pattern=_LABEL, description="Name of the pod whose conditions are written.")]
    namespace: Annotated[str, Field(pattern=_LABEL, description="Its namespace.")] = "default"
    uid: Annotated[str, Field(description="Its UID; empty: that of the pod of this name when the sink begins.")] = ""
    prefix: Annotated[
        str,
        Field(pattern=_LABEL, description="Condition types that begin with PREFIX/ are this sink's, and no others."),
    ] = "workers.enginebay"
    api: Annotated[str, Field(description="Address of the API; empty: that of the cluster this process runs in.")] = ""
    timeout: Annotated[float, Field(gt=0, le=60, allow_inf_nan=False, description="Seconds of one call.")] = 5.0


def _make(context: StatusSinkContext[PodOptions]) -> PodConditions:
    from enginebay_pod_conditions.sink import PodConditions

    return PodConditions(context)


@hookimpl
def enginebay_register_status_sinks() -> list[StatusSinkPlugin[PodOptions]]:
    """Offer ``pod_conditions``."""
    return [
        StatusSinkPlugin(
            name="pod_conditions",
            options=PodOptions,
            factory=_make,
            summary="Workers as conditions of their Kubernetes pod.",
            requires_modules={"kubernetes": "enginebay-pod-conditions"},
        )
    ]
