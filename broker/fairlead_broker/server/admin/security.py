"""Calls about callers, tokens, ACLs and the security mode.

Callers: ``application`` for the routes named in ``endpoints``. This module handles bodies and pages; the runtime
changes records. Only the answer to the call that creates a token contains the text of the token.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping
from http import HTTPStatus

from fairlead_api.access_needs import SINGLE_NAME, Kind, Operation
from fairlead_api.bodies.metadata import Page
from fairlead_api.bodies.requests import decode_request
from fairlead_api.bodies.security import (
    AclDescription,
    AclRequest,
    Applied,
    CertificateDescription,
    CheckAnswer,
    CheckRequest,
    CreatedAcl,
    CreatedToken,
    CreateTokenRequest,
    DeniedDescription,
    IssuerDescription,
    OwnLimit,
    SecurityStatus,
    TokenDescription,
    WhoAmI,
)
from fairlead_api.identifiers import BrokerId
from fairlead_api.patterns import matches
from fairlead_api.principals import check_principal_pattern
from fairlead_api.problems import ProblemError
from fairlead_api.timestamps import format_timestamp
from fairlead_broker.access.caller import Caller
from fairlead_broker.access.mode import SecurityMode
from fairlead_broker.access.would_be_denied import DeniedOperation
from fairlead_broker.identity.issuer_keys import IssuerKeys
from fairlead_broker.peers.forwarded_callers import audited_caller_headers
from fairlead_broker.peers.messages import decode
from fairlead_broker.peers.peers import SHORT_CALL_SECONDS_MAX, PeerUnavailable
from fairlead_broker.registry.records import BrokerRegistration
from fairlead_broker.registry.security_records import AclRecord
from fairlead_broker.runtime import Broker
from fairlead_broker.runtime.security_mode import check_level
from fairlead_broker.server.http.call import Call, Endpoint, json_body
from fairlead_broker.server.http.paging import page


class SecurityCalls:
    """Endpoints of the calls about security."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def endpoints(self) -> Mapping[str, Endpoint]:
        """Return the endpoint of each route of this family, by route name."""
        return {
            "whoami": self.whoami,
            "security_status": self.security_status,
            "list_tokens": self.list_tokens,
            "create_token": self.create_token,
            "revoke_token": self.revoke_token,
            "list_acls": self.list_acls,
            "create_acl": self.create_acl,
            "remove_acl": self.remove_acl,
            "check_acls": self.check_acls,
        }

    async def whoami(self, call: Call) -> None:
        """``GET /v1/whoami``."""
        caller = call.access.caller
        limits = [
            OwnLimit(
                limit=applied.key.limit,
                value=applied.value,
                subject=applied.key.subject,
                shared=applied.key.principal is None,
                use=round(use, 3),
            )
            for applied, use in self._broker.quotas.applied_to(call.access, call.client_address)
        ]
        await call.answer_json(
            WhoAmI(
                principal=caller.principal,
                groups=list(caller.groups),
                source=caller.source,
                token_id=caller.token_id,
                expires_at=_time(caller.expires_us),
                superuser=call.access.rules.is_superuser,
                mode=self._broker.security.mode,
                limits=limits,
            )
        )

    async def security_status(self, call: Call) -> None:
        """``GET /v1/security``."""
        view, metadata = self._broker.security, self._broker.metadata
        denied, silent = await self._would_be_denied(call)
        await call.answer_json(
            SecurityStatus(
                mode=view.mode,
                floor=view.floor,
                superusers=list(view.superusers),
                tokens=len(metadata.tokens),
                acls=len(metadata.acls),
                issuers=[_issuer(keys) for _, keys in sorted(view.signed.issuers.items())],
                certificates=[
                    certificate
                    for broker, registration in sorted(metadata.brokers.items())
                    for certificate in _certificates(broker, registration.value)
                ],
                would_be_denied=denied,
                silent_brokers=silent,
            )
        )

    async def _would_be_denied(self, call: Call) -> tuple[list[DeniedDescription], list[int]]:
        """Return the operations that `enforce` mode would refuse, and the brokers that did not answer.

        Clients call all brokers, so in `observe` mode the counts of all brokers are added.
        """
        counts, silent = Counter(dict(self._broker.security.would_be_denied.entries())), list[int]()
        if call.may_forward and self._broker.security.mode is SecurityMode.OBSERVE:
            own = self._broker.peer_side.peers.own.broker
            others = [broker for broker in sorted(self._broker.metadata.brokers) if broker != own]
            answers = await asyncio.gather(*(self._denied_at(broker, call) for broker in others))
            for broker, found in zip(others, answers, strict=True):
                counts.update(found or {})
                if found is None:
                    silent.append(broker)
        described = [
            DeniedDescription(
                principal=denied.principal,
                operation=denied.operation,
                resource=denied.resource,
                count=count,
            )
            for denied, count in counts.items()
        ]
        return described, silent

    async def _denied_at(self, broker: BrokerId, call: Call) -> Mapping[DeniedOperation, int] | None:
        """Return the counts of another broker, or None if the broker does not give a known answer."""
        headers = audited_caller_headers(call.access, call.client_address)
        try:
            answer = await self._broker.peer_side.peers.call(
                broker, "GET", "/v1/security", headers=headers, timeout_seconds=SHORT_CALL_SECONDS_MAX
            )
            if answer.status != HTTPStatus.OK:
                return None
            status = decode(SecurityStatus, answer.body)
        except (PeerUnavailable, ProblemError):
            return None
        return {
            DeniedOperation(each.principal, each.operation, each.resource): each.count
            for each in status.would_be_denied
        }

    async def list_tokens(self, call: Call) -> None:
        """``GET /v1/tokens``, sorted by id."""
        pattern = call.query.text_or_none("principal") or "*"
        items = [
            TokenDescription(
                token_id=token_id,
                principal=token.value.principal,
                created_at=format_timestamp(token.value.created_us),
                created_by=token.value.created_by,
                expires_at=_time(token.value.expires_us),
                note=token.value.note,
                owner=token.value.owner,
            )
            for token_id, token in sorted(self._broker.metadata.tokens.items())
            if matches(pattern, token.value.principal)
        ]
        chosen, following = page(
            items,
            lambda token: token.token_id,
            limit=call.query.integer("limit"),
            after=call.query.text_or_none("after"),
        )
        await call.answer_json(Page(items=chosen, next=following))

    async def create_token(self, call: Call) -> None:
        """``POST /v1/tokens``."""
        request = decode_request(CreateTokenRequest, await json_body(call))
        self._admit("an API token")
        changes = self._broker.security_changes
        token, record = await changes.create_token(request, call.access.caller.principal)
        call.change = {
            "token_id": token.token_id,
            "principal": record.principal,
            "expires_at": _time(record.expires_us),
            "note": record.note,
        }
        answer = CreatedToken(
            token=token.text,
            token_id=token.token_id,
            principal=record.principal,
            expires_at=_time(record.expires_us),
            applied_everywhere=await changes.applied_everywhere(),
        )
        await call.answer_json(answer, HTTPStatus.CREATED, [(b"cache-control", b"no-store")])

    async def revoke_token(self, call: Call) -> None:
        """``DELETE /v1/tokens/{token}``."""
        self._admit("an API token")
        changes, token_id = self._broker.security_changes, call.parameters["token"]
        known = self._broker.metadata.tokens.get(token_id)
        await changes.revoke_token(token_id, force=call.query.flag("force"))
        if known is not None:
            call.change = {"principal": known.value.principal}
        await call.answer_json(Applied(applied_everywhere=await changes.applied_everywhere()))

    async def list_acls(self, call: Call) -> None:
        """``GET /v1/acls``, sorted by id."""
        principal, kind, name = map(call.query.text_or_none, ("principal", "kind", "name"))
        items = [
            AclDescription(**_described(acl_id, acl.value))  # type: ignore[arg-type]
            for acl_id, acl in sorted(self._broker.metadata.acls.items())
            if matches(principal or "*", acl.value.principal)
            and kind in (None, acl.value.kind)
            and (name is None or matches(acl.value.pattern, name))
        ]
        chosen, following = page(
            items,
            lambda acl: acl.acl_id,
            limit=call.query.integer("limit"),
            after=call.query.text_or_none("after"),
        )
        await call.answer_json(Page(items=chosen, next=following))

    async def create_acl(self, call: Call) -> None:
        """``POST /v1/acls``: 201 for a new ACL, 200 for an existing ACL."""
        request = decode_request(AclRequest, await json_body(call))
        self._admit("an ACL")
        changes = self._broker.security_changes
        acl, record, created = await changes.create_acl(request, call.access.caller.principal)
        if created:
            call.change = _audited(acl.acl_id, record)
        answer = CreatedAcl(
            **_described(acl.acl_id, record),  # type: ignore[arg-type]
            applied_everywhere=await changes.applied_everywhere(),
        )
        await call.answer_json(answer, HTTPStatus.CREATED if created else HTTPStatus.OK)

    async def remove_acl(self, call: Call) -> None:
        """``DELETE /v1/acls/{acl}``."""
        self._admit("an ACL")
        changes, acl_id = self._broker.security_changes, call.parameters["acl"]
        known = self._broker.metadata.acls.get(acl_id)
        await changes.remove_acl(acl_id, force=call.query.flag("force"))
        if known is not None:
            call.change = _audited(acl_id, known.value)
        await call.answer_json(Applied(applied_everywhere=await changes.applied_everywhere()))

    async def check_acls(self, call: Call) -> None:
        """``POST /v1/acls:check``: whether the current mode and ACLs allow an operation, and the reason."""
        request = decode_request(CheckRequest, await json_body(call))
        caller = call.access.caller
        if request.principal is not None and (request.principal, request.groups) != (
            caller.principal,
            caller.groups,
        ):
            call.access.require(Operation.DESCRIBE, Kind.SECURITY, SINGLE_NAME)
            for name in (request.principal, *request.groups):
                check_principal_pattern(name)
            caller = Caller(principal=request.principal, groups=request.groups)
        view = self._broker.security
        decision = view.rules_of(caller).decide(request.operation, request.kind, request.name)
        if not decision.allowed and view.mode is not SecurityMode.ENFORCE:
            await call.answer_json(CheckAnswer(allowed=True, because="mode"))
            return
        await call.answer_json(CheckAnswer(allowed=decision.allowed, because=decision.because))

    def _admit(self, what: str) -> None:
        self._broker.admit()
        check_level(self._broker.feature_level, what)


def _described(acl_id: str, record: AclRecord) -> dict[str, object]:
    return {
        "acl_id": acl_id,
        "effect": record.effect,
        "principal": record.principal,
        "operations": list(record.operations),
        "kind": record.kind,
        "pattern": record.pattern,
        "created_at": format_timestamp(record.created_us),
        "created_by": record.created_by,
        "owner": record.owner,
    }


def _certificates(broker: int, registration: BrokerRegistration) -> Iterator[CertificateDescription]:
    """Yield the certificates of a broker's data and peer listeners."""
    addresses = registration.addresses
    for listener, certificate, in_use in (
        ("data", registration.tls, addresses.data_tls is not None),
        ("peer", registration.peer_tls, addresses.peer_scheme == "https"),
    ):
        if certificate is not None:
            yield CertificateDescription(
                broker=broker,
                listener=listener,  # type: ignore[arg-type]
                certificate_sha256=certificate.certificate_sha256,
                not_after=format_timestamp(certificate.not_after_us),
                authorities_sha256=list(certificate.ca_sha256),
                in_use=in_use,
            )


def _audited(acl_id: str, record: AclRecord) -> dict[str, object]:
    """Return an ACL as the audit log reports it."""
    described = _described(acl_id, record)
    return {
        name: described[name] for name in ("acl_id", "effect", "principal", "operations", "kind", "pattern")
    }


def _issuer(keys: IssuerKeys) -> IssuerDescription:
    return IssuerDescription(
        name=keys.rules.name,
        issuer=keys.rules.issuer,
        keys=len(keys.keys),
        fetched_at=_time(keys.fetched_us),
        failing=keys.failing,
    )


def _time(time_us: int | None) -> str | None:
    return None if time_us is None else format_timestamp(time_us)
