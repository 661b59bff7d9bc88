"""Cases of the alerts about certificates, tokens and connections (rules T10, A24).

`alert_cases.py` describes the format of cases.
"""

from __future__ import annotations

from typing import Final

from alert_series import BROKER, WHERE, of_broker, pair


def certificate(end: str, begin: str = "0+0x60") -> dict[str, str]:
    """Return the series with the start and the expiry of the data listener's certificate."""
    return {
        of_broker("fairlead_tls_certificate_expiry_timestamp_seconds", listener="data"): end,
        of_broker("fairlead_tls_certificate_start_timestamp_seconds", listener="data"): begin,
    }


def refused(values: str) -> dict[str, str]:
    """Return series of refused tokens, together with accepted tokens."""
    return {
        of_broker("fairlead_authentications_total", source="none", outcome="refused"): values,
        of_broker("fairlead_authentications_total", source="api_token", outcome="accepted"): "0+6000x400",
    }


SECURITY: Final = (
    *pair(
        "FairleadCertificateEndsSoon",
        540,
        certificate("36000+0x60"),
        "The certificate of listener data of broker main-a-0 of cluster main in shop is valid for another 1h 0m 0s, "
        "which is less than a fifth of its validity.",
        {**BROKER, "listener": "data"},
        certificate("360000+0x60"),
        step_minutes=10,
    ),
    *pair(
        "FairleadCertificateEnds",
        570,
        certificate("36000+0x60"),
        "The certificate of listener data of broker main-a-0 of cluster main in shop is valid for another 30m 0s; "
        "afterwards every client refuses it.",
        {**BROKER, "listener": "data"},
        certificate("360000+0x60"),
        step_minutes=10,
    ),
    *pair(
        "FairleadCertificateRefused",
        10,
        {of_broker("fairlead_tls_reload_failures_total", listener="peer"): "0 0 0 1+0x10"},
        "Broker main-a-0 of cluster main in shop refused changed files of listener peer within an hour, and continues "
        "with the previous one.",
        {**BROKER, "listener": "peer"},
        {of_broker("fairlead_tls_reload_failures_total", listener="peer"): "3+0x10"},
    ),
    *pair(
        "FairleadSecurityStale",
        5,
        {of_broker("fairlead_security_stale_seconds"): "3 63 123 183 243 303"},
        "Broker main-a-0 of cluster main in shop uses tokens and ACLs that are 5m 3s old.",
        BROKER,
        {of_broker("fairlead_security_stale_seconds"): "3 63 3 3 3 63"},
    ),
    *pair(
        "FairleadIssuerKeysOld",
        10,
        {of_broker("fairlead_issuer_keys_age_seconds", issuer="corp"): "+Inf+0x10"},
        "Broker main-a-0 of cluster main in shop has not fetched the keys of issuer corp for an hour.",
        {**BROKER, "issuer": "corp"},
        {of_broker("fairlead_issuer_keys_age_seconds", issuer="corp"): "0 +Inf 60+0x8"},
    ),
    *pair(
        "FairleadTokensRefused",
        2000,
        refused("0+0x380 3000+3000x20"),
        "Cluster main in shop refuses 10 tokens a second, more than three times the average of a day.",
        WHERE,
        refused("0+3000x400"),
        step_minutes=5,
    ),
    *pair(
        "FairleadQuotaExhausted",
        20,
        {of_broker("fairlead_quota_used_ratio", subject="user:shop.*", limit="produce"): "0 0.5 1+0x20"},
        "user:shop.* uses 100% of its limit produce in cluster main in shop.",
        {**WHERE, "subject": "user:shop.*", "limit": "produce"},
        {of_broker("fairlead_quota_used_ratio", subject="user:shop.*", limit="produce"): "0.9+0x22"},
    ),
    *pair(
        "FairleadConnectionsClosed",
        30,
        {of_broker("fairlead_closed_connections_total", reason="no_request"): "0+120x30"},
        "Broker main-a-0 of cluster main in shop closes 2 connections a second with the reason no_request.",
        {**BROKER, "reason": "no_request"},
        {of_broker("fairlead_closed_connections_total", reason="no_request"): "0+12x30"},
    ),
)
