"""Problems of the request itself, which remain until the caller changes the request.

The module is a part of the problem catalogue, which `problems` assembles.
"""

from __future__ import annotations

from typing import Final

from fairlead_api.problems.definitions import DataMember, ProblemDefinition, ProblemKind

FIX: Final = ProblemKind.FIX
FENCED: Final = ProblemKind.FENCED

TOPIC: Final = DataMember("topic", "name of the topic")
PARTITION: Final = DataMember("partition", "index of the partition")
PARAMETER: Final = DataMember(
    "parameter", "name of the parameter or header, or path of the field in the body"
)
VALUE: Final = DataMember("value", "value in the request, truncated if long")
ALLOWED: Final = DataMember("allowed", "allowed values")
LIMIT_BYTES: Final = DataMember("limit_bytes", "largest size that is accepted")
LIMIT_RECORDS: Final = DataMember("limit_records", "largest number of records in a batch")
LIMIT_HEADERS: Final = DataMember("limit_headers", "largest number of headers in a batch")
SUPPORTED: Final = DataMember("supported", "supported values")

REQUEST_PROBLEMS: Final = (
    ProblemDefinition(
        "malformed_batch",
        400,
        "The record batch is malformed",
        FIX,
        "The bytes of a record batch violate the rules of the format: a length, a count, a reserved bit or "
        "the Arrow message does not match the header. Nothing was stored.",
        "Encode the batch as described in the record batch reference; the detail names the first violated rule.",
    ),
    ProblemDefinition(
        "malformed_request",
        400,
        "The request is malformed",
        FIX,
        "The body, a parameter or a header could not be read: broken JSON, a wrong type, a missing field, a "
        "value out of range, or frames whose lengths do not add up. Nothing was changed.",
        "Correct the part of the request that the detail names, and send the request again.",
        data_members=(PARAMETER, VALUE, ALLOWED),
    ),
    ProblemDefinition(
        "unsupported_version",
        400,
        "The version is not supported",
        FIX,
        "The request names an API version, frame version or batch format that this broker does not support.",
        "Choose one of the supported versions listed in the problem, or call `GET /v1/versions`.",
        data_members=(PARAMETER, VALUE, SUPPORTED),
    ),
    ProblemDefinition(
        "crc_mismatch",
        400,
        "The checksum does not match",
        FIX,
        "The checksum of a received record batch does not match its bytes: the batch was damaged in transit, or the "
        "sender computes the checksum over the wrong range. Nothing was stored.",
        "Send the batch again from its source. If the error repeats, check the range of the checksum: "
        "from byte 36 to the end of the batch.",
    ),
    ProblemDefinition(
        "unauthenticated",
        401,
        "The caller is not authenticated",
        FIX,
        "The call requires an identity, but has none or one that could not be verified. The member `reason` does not "
        "distinguish an unknown token from a wrong one.",
        "Send a valid token: `Authorization: Bearer TOKEN`. An administrator creates tokens with `fairlead token "
        "create`.",
        data_members=(
            DataMember("reason", "`missing`, `malformed`, `expired`, or `refused` for every other cause"),
        ),
    ),
    ProblemDefinition(
        "forbidden",
        403,
        "The operation is not permitted",
        FIX,
        "The caller is authenticated, but is not permitted to perform this operation on this resource.",
        "Ask the cluster's administrator for the permission that the detail names.",
        data_members=(
            DataMember("operation", "operation that was refused"),
            DataMember("resource", "its resource"),
        ),
    ),
    ProblemDefinition(
        "producer_fenced",
        403,
        "A newer producer took over",
        FENCED,
        "A producer with the same name and a higher epoch is active. This producer may be left over from an earlier "
        "run.",
        "Stop this producer. If both producers should run, give them different names.",
        data_members=(
            DataMember("producer_id", "id of the producer"),
            DataMember("producer_epoch", "the newer epoch"),
            DataMember(
                "current_epoch",
                "the newer epoch, if a partition or a decision about a transaction refused the epoch",
            ),
        ),
    ),
    ProblemDefinition(
        "peer_refused",
        403,
        "The caller is not a broker of this cluster",
        FIX,
        "The peer listener serves only the brokers of its cluster, and the caller could not be verified as one: it "
        "names another cluster, is not registered, or does not have the secret of its registration.",
        "Clients use the data listener. For a broker, check its peer addresses and its cluster.",
        data_members=(DataMember("broker", "broker id in the request"),),
    ),
    ProblemDefinition(
        "stale_broker_epoch",
        412,
        "The broker epoch is stale",
        FENCED,
        "A broker made a call with a broker epoch that is no longer registered.",
        "None: brokers send this answer to each other, and the calling broker registers again automatically.",
        data_members=(
            DataMember("broker", "the broker that called"),
            DataMember("broker_epoch", "the epoch in which the broker is registered"),
        ),
    ),
    ProblemDefinition(
        "method_not_allowed",
        405,
        "The method is not allowed here",
        FIX,
        "The path exists, but does not support this HTTP method.",
        "Use one of the methods in the `Allow` header.",
        data_members=(ALLOWED,),
    ),
    ProblemDefinition(
        "not_acceptable",
        406,
        "No acceptable media type",
        FIX,
        "The `Accept` header names no media type in which this call can answer, or a record is too large "
        "for the requested media type.",
        "Request one of the supported media types listed in the problem.",
        data_members=(SUPPORTED,),
    ),
    ProblemDefinition(
        "batch_too_large",
        413,
        "The record batch is too large",
        FIX,
        "The stored batch would exceed `max.message.bytes` of the topic, the limit for its decompressed "
        "size, or the maximum number of records or headers in a batch. A JSON or Arrow body to one "
        "partition becomes exactly one batch and is never split.",
        "Send fewer records in a batch, or raise `max.message.bytes` of the topic.",
        data_members=(LIMIT_BYTES, LIMIT_RECORDS, LIMIT_HEADERS),
    ),
    ProblemDefinition(
        "body_too_large",
        413,
        "The request body is too large",
        FIX,
        "The body of the request exceeds the size that the broker reads into memory for this call.",
        "Send the records in several requests.",
        data_members=(LIMIT_BYTES,),
    ),
    ProblemDefinition(
        "headers_too_large",
        431,
        "The request headers are too large",
        FIX,
        "The request's target and headers exceed the size that the broker reads for one request. Nothing "
        "was changed.",
        "Send fewer or shorter headers and parameters, or raise the brokers' setting `header_bytes_max`.",
        data_members=(LIMIT_BYTES,),
    ),
    ProblemDefinition(
        "unsupported_media_type",
        415,
        "The body's media type is not supported",
        FIX,
        "This call does not support the `Content-Type` of the request.",
        "Use one of the supported media types listed in the problem.",
        data_members=(SUPPORTED,),
    ),
    ProblemDefinition(
        "offset_out_of_range",
        416,
        "The offset is beyond the log",
        FIX,
        "The call requests an offset beyond the readable end of the partition, or the deletion of records that are "
        "not committed yet.",
        "Continue at an offset between the two offsets in the problem, or at `earliest` or `latest`.",
        data_members=(
            TOPIC,
            PARTITION,
            DataMember("offset", "requested offset"),
            DataMember("log_start_offset", "first offset that can be read"),
            DataMember("high_watermark", "end of the readable records"),
        ),
    ),
    ProblemDefinition(
        "invalid_record",
        422,
        "A record is invalid",
        FIX,
        "The body was readable, but a record in it cannot be stored: a null where none is allowed, a "
        "timestamp outside the topic's window, a column of a wrong type, or a value that its encoding "
        "cannot represent. No part of the batch was stored.",
        "Correct the record or column that the detail names.",
        data_members=(DataMember("record", "index of the record in the request, from 0"), PARAMETER, VALUE),
    ),
    ProblemDefinition(
        "invalid_topic_name",
        422,
        "The topic name is not allowed",
        FIX,
        "A topic name must consist of 1 to 249 characters from a-z, A-Z, 0-9, '.', '_' and '-', must not be '.' or "
        "'..', and must not become the same metric name as an existing topic ('.' and '_' are equal in metric names).",
        "Choose another name.",
        data_members=(TOPIC,),
    ),
    ProblemDefinition(
        "invalid_group_name",
        422,
        "The name is not allowed",
        FIX,
        "Names of groups, members and producers must consist of printable characters, must have 1 to 249 characters "
        "when percent-encoded, and must not be '.' or '..'.",
        "Choose another name.",
        data_members=(DataMember("group", "name that was refused"),),
    ),
    ProblemDefinition(
        "invalid_pattern",
        422,
        "The pattern is not allowed",
        FIX,
        "A subscription pattern is not a valid RE2 expression, or is too expensive to match.",
        "Correct the pattern; RE2 supports neither back references nor look-around. Use fewer repetitions, or list the "
        "topics.",
        data_members=(VALUE,),
    ),
    ProblemDefinition(
        "group_too_large",
        422,
        "The group is too large",
        FIX,
        "The group would exceed the maximum number of members or partitions in a group.",
        "Use fewer members, or divide the topics among several groups.",
        data_members=(DataMember("limit", "the limit that would be exceeded"),),
    ),
    ProblemDefinition(
        "invalid_config",
        422,
        "The configuration is not allowed",
        FIX,
        "A configuration key is unknown, its value has the wrong type or is out of range, the change is "
        "not possible (the number of partitions never decreases), or the key is not supported yet. Nothing was "
        "changed.",
        "Correct the key or value that the detail names; the configuration reference lists every key.",
        data_members=(DataMember("key", "configuration key"), VALUE, ALLOWED),
    ),
    ProblemDefinition(
        "unknown_option",
        422,
        "The option is unknown",
        FIX,
        "A query parameter or a field of the body has a name that this call does not support. Unknown names "
        "are refused so that a misspelled name is not silently ignored.",
        "Remove or correct the name; the problem lists the allowed names.",
        data_members=(PARAMETER, ALLOWED),
    ),
    ProblemDefinition(
        "idempotency_key_reused",
        422,
        "The idempotency key was used for a different body",
        FIX,
        "A request with the same `Idempotency-Key` and a different body was stored within the last 24 hours.",
        "Use a new key for every new request, and the same key only to retry a request.",
    ),
)
