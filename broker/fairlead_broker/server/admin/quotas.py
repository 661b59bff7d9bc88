"""Calls about quotas.

Callers: ``application`` for the routes named in ``endpoints``. This module handles bodies and pages; the runtime
changes records and counts use.
"""

from __future__ import annotations

from collections.abc import Mapping

from fairlead_api.bodies.metadata import Page
from fairlead_api.bodies.quotas import (
    ChangedQuota,
    QuotaDescription,
    QuotaRequest,
    QuotaUse,
    check_quota,
)
from fairlead_api.bodies.requests import decode_request
from fairlead_api.bodies.security import Applied
from fairlead_api.patterns import matches
from fairlead_api.timestamps import format_timestamp
from fairlead_broker.registry.security_records import QuotaRecord
from fairlead_broker.runtime import Broker
from fairlead_broker.runtime.security_mode import check_level
from fairlead_broker.server.http.call import Call, Endpoint, json_body
from fairlead_broker.server.http.paging import page


class QuotaCalls:
    """Endpoints of the calls about quotas."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def endpoints(self) -> Mapping[str, Endpoint]:
        """Return the endpoint of each route of this family, by route name."""
        return {
            "list_quotas": self.list_quotas,
            "put_quota": self.put_quota,
            "remove_quota": self.remove_quota,
        }

    async def list_quotas(self, call: Call) -> None:
        """``GET /v1/quotas``, sorted by subject."""
        pattern = call.query.text_or_none("subject") or "*"
        chosen, following = page(
            [
                (subject, quota.value)
                for subject, quota in sorted(self._broker.metadata.quotas.items())
                if matches(pattern, subject)
            ],
            lambda quota: quota[0],
            limit=call.query.integer("limit"),
            after=call.query.text_or_none("after"),
        )
        with_use = call.query.flag("usage")
        items = [
            QuotaDescription(**_described(*quota), usage=self._usage(quota[0]) if with_use else None)  # type: ignore[arg-type]
            for quota in chosen
        ]
        await call.answer_json(Page(items=items, next=following))

    async def put_quota(self, call: Call) -> None:
        """``PUT /v1/quotas/{subject}``."""
        request, subject = decode_request(QuotaRequest, await json_body(call)), call.parameters["subject"]
        check_quota(subject, request)
        self._admit()
        changes = self._broker.security_changes
        known = self._broker.metadata.quotas.get(subject)
        record = await changes.put_quota(
            subject, request, call.access.caller.principal, force=call.query.flag("force")
        )
        call.change = {
            "old": None if known is None else _limits(known.value),
            "new": _limits(record),
        }
        answer = ChangedQuota(
            **_described(subject, record),  # type: ignore[arg-type]
            applied_everywhere=await changes.applied_everywhere(),
        )
        await call.answer_json(answer)

    async def remove_quota(self, call: Call) -> None:
        """``DELETE /v1/quotas/{subject}``."""
        self._admit()
        changes, subject = self._broker.security_changes, call.parameters["subject"]
        known = self._broker.metadata.quotas.get(subject)
        await changes.remove_quota(subject, force=call.query.flag("force"))
        if known is not None:
            call.change = {"old": _limits(known.value)}
        await call.answer_json(Applied(applied_everywhere=await changes.applied_everywhere()))

    def _usage(self, subject: str) -> list[QuotaUse]:
        return [
            QuotaUse(limit=str(key.limit), principal=key.principal, per_second=round(rate, 3))
            for key, rate in self._broker.quotas.use_of(subject)
        ]

    def _admit(self) -> None:
        self._broker.admit()
        check_level(self._broker.feature_level, "a quota")


def _limits(record: QuotaRecord) -> dict[str, object]:
    return {"each": record.each, "shared": record.shared}


def _described(subject: str, record: QuotaRecord) -> dict[str, object]:
    return {
        "subject": subject,
        "each": record.each,
        "shared": record.shared,
        "changed_at": format_timestamp(record.changed_us),
        "changed_by": record.changed_by,
        "owner": record.owner,
    }
