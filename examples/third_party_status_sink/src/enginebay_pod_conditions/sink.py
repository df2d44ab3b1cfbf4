"""The sink: GET the pod, look whether the slot still holds what was seen, PATCH its status if nobody else has.

Every PATCH names the pod's UID and resourceVersion, so the API refuses it when the pod is another one or has changed.
It holds one condition, of a type of ours: all that others say of the pod stays. Nothing is ever deleted.
"""

from __future__ import annotations

from typing import Any

import urllib3
from kubernetes import client, config

from enginebay.interfaces import StatusConflict, StatusSink, StatusSinkContext, Stored
from enginebay.messages import Slot, StatusRecord
from enginebay_pod_conditions.plugin import PodOptions
from enginebay_pod_conditions.words import condition_of, condition_type, emptied, rfc3339, stored

_TRIES = 5
"""Writes of one condition while others write to the pod."""


class PodConditions(StatusSink[PodOptions]):
    """See the module."""

    def __init__(self, context: StatusSinkContext[PodOptions]) -> None:
        super().__init__(context)
        configuration = client.Configuration()
        if context.options.api:
            configuration.host = context.options.api.rstrip("/")
        else:
            config.load_incluster_config(configuration)  # type: ignore[no-untyped-call]  # it says no types
        configuration.retries = False  # whoever calls tries again, later each time
        self._client = client.ApiClient(configuration)
        self._api = client.CoreV1Api(self._client)
        self._uid = context.options.uid

    def read(self, slot: Slot) -> Stored | None:
        return self._held(self._pod(), slot)

    def write(self, record: StatusRecord, seen: str) -> str:
        for _ in range(_TRIES):
            pod = self._pod()
            held = self._held(pod, record.status.slot)
            if (held.tag if held is not None else "") != seen:
                raise StatusConflict(held)
            condition = condition_of(record, self.context.options.prefix)
            if self._patch(pod, condition):
                written = stored(condition["reason"], condition["message"])
                assert written is not None
                return written.tag
        raise self._too_busy()

    def remove(self, slot: Slot, incarnation_id: str) -> None:
        for _ in range(_TRIES):
            pod = self._pod()
            held = self._held(pod, slot)
            if held is None or held.record.status.incarnation.id != incarnation_id:
                return
            if self._patch(pod, emptied(self.context.options.prefix, slot)):
                return
        raise self._too_busy()

    def records(self) -> list[Stored]:
        ours = [one for one in self._conditions(self._pod()) if one.type.startswith(f"{self.context.options.prefix}/")]
        return [held for one in ours if (held := stored(one.reason, one.message)) is not None]

    def close(self) -> None:
        self._client.close()  # type: ignore[no-untyped-call]  # it says no types

    def _pod(self) -> Any:
        """The pod as it stands; raises ``OSError`` when it is not the one that this sink began with."""
        options = self.context.options
        pod = self._call("GET", self._api.read_namespaced_pod)
        self._uid = self._uid or pod.metadata.uid
        if pod.metadata.uid != self._uid:
            raise OSError(f"pod {options.namespace}/{options.pod} is another one now: nothing is written to it")
        return pod

    def _patch(self, pod: Any, condition: dict[str, Any]) -> bool:
        """Whether it was taken; False: the pod has changed meanwhile."""
        was = next((one for one in self._conditions(pod) if one.type == condition["type"]), None)
        if was is None or was.status != condition["status"] or was.last_transition_time is None:
            condition = condition | {"lastTransitionTime": rfc3339(self.context.wall())}
        body = {
            "metadata": {"uid": pod.metadata.uid, "resourceVersion": pod.metadata.resource_version},
            "status": {"conditions": [condition]},  # a strategic merge: by type, and all others stay
        }
        patched = self._call(
            "PATCH",
            self._api.patch_namespaced_pod_status,
            body=body,
            field_manager="enginebay",
            _content_type="application/strategic-merge-patch+json",
        )
        return patched is not None

    def _call(self, verb: str, method: Any, **rest: Any) -> Any:
        """What the API answers; None: it refuses a PATCH, since the pod has changed. Else ``OSError``, in one line."""
        options = self.context.options
        where = f"{verb} pod {options.namespace}/{options.pod}"
        try:
            return method(options.pod, options.namespace, _request_timeout=options.timeout, **rest)
        except client.ApiException as error:
            if error.status == 409 and verb == "PATCH":
                return None
            raise OSError(f"{where}: {error.status} {error.reason}") from error
        except urllib3.exceptions.HTTPError as error:
            raise OSError(f"{where}: {error}") from error

    def _held(self, pod: Any, slot: Slot) -> Stored | None:
        kind = condition_type(self.context.options.prefix, slot)
        found = next((one for one in self._conditions(pod) if one.type == kind), None)
        return None if found is None else stored(found.reason, found.message)

    def _conditions(self, pod: Any) -> list[Any]:
        return list(pod.status.conditions or ())

    def _too_busy(self) -> OSError:
        options = self.context.options
        return OSError(f"pod {options.namespace}/{options.pod} changed {_TRIES} times while it was written")
