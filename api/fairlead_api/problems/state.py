"""Problems of valid requests that conflict with the state of topics, groups, producers or logs.

Part of the problem catalogue, which `problems` assembles.
"""

from __future__ import annotations

from typing import Final

from fairlead_api.problems.definitions import DataMember, ProblemDefinition, ProblemKind

FIX: Final = ProblemKind.FIX
REFRESH: Final = ProblemKind.REFRESH
FENCED: Final = ProblemKind.FENCED
DATA_LOSS: Final = ProblemKind.DATA_LOSS

TOPIC: Final = DataMember("topic", "name of the topic")
PARTITION: Final = DataMember("partition", "index of the partition")
LEADER_EPOCH: Final = DataMember("leader_epoch", "leader epoch that the broker knows")
EXPECTED: Final = DataMember("expected", "what the broker expected")

STATE_PROBLEMS: Final = (
    ProblemDefinition(
        "topic_not_found",
        404,
        "The topic does not exist",
        FIX,
        "No topic has this name or id, or it is being deleted.",
        "Check the name, or create the topic.",
        data_members=(TOPIC, DataMember("topic_id", "id of the topic")),
    ),
    ProblemDefinition(
        "partition_not_found",
        404,
        "The partition does not exist",
        FIX,
        "The topic exists and has no partition with this index.",
        "Use an index below the number of partitions.",
        data_members=(TOPIC, PARTITION, DataMember("partitions", "number of partitions of the topic")),
    ),
    ProblemDefinition(
        "group_not_found",
        404,
        "The group does not exist",
        FIX,
        "No consumer group has this name, neither members nor committed offsets.",
        "Check the name; a group comes into being when its first member joins.",
        data_members=(DataMember("group", "name of the group"),),
    ),
    ProblemDefinition(
        "member_not_found",
        404,
        "The member does not exist",
        FIX,
        "The group has no such member: it left, or its session ran out.",
        "Join again with member epoch 0.",
        data_members=(DataMember("group", "name of the group"), DataMember("member_id", "id of the member")),
    ),
    ProblemDefinition(
        "broker_not_found",
        404,
        "The broker does not exist",
        FIX,
        "No broker is registered under this id.",
        "Check the id with `GET /v1/brokers`.",
        data_members=(DataMember("broker", "id of the broker"),),
    ),
    ProblemDefinition(
        "route_not_found",
        404,
        "The path does not exist",
        FIX,
        "No call of this listener has this path.",
        "Check the path; `/openapi.json` lists all of them.",
    ),
    ProblemDefinition(
        "topic_exists",
        409,
        "The topic exists with another specification",
        FIX,
        "A topic of this name exists and differs from what the request describes. (The same specification "
        "again answers 200.)",
        "Choose another name, or alter the existing topic.",
        data_members=(TOPIC,),
    ),
    ProblemDefinition(
        "topic_recreated",
        409,
        "The topic was deleted and created again",
        REFRESH,
        "The topic id sent with the request belongs to an earlier topic of the same name.",
        "Learn the metadata again and decide whether the new topic is meant: its offsets start again at 0.",
        data_members=(TOPIC, EXPECTED, DataMember("actual", "id of the live topic")),
    ),
    ProblemDefinition(
        "out_of_order_sequence",
        409,
        "The sequence is out of order",
        FIX,
        "A batch of an idempotent producer arrived ahead of one that is missing and did not come within a second, or "
        "is older than the last five and no repeat of one of them. Nothing was appended.",
        "Send the missing batch first. An SDK that meets this lost a batch: report it.",
        data_members=(TOPIC, PARTITION, EXPECTED),
    ),
    ProblemDefinition(
        "group_not_empty",
        409,
        "The group has members",
        FIX,
        "The operation needs a group without members.",
        "Stop the members of the group, or wait for their sessions to end.",
        data_members=(DataMember("group", "name of the group"),),
    ),
    ProblemDefinition(
        "member_fenced",
        409,
        "The member was fenced",
        FENCED,
        "The member's partitions were given to others, because it did not answer in time.",
        "Give up the partitions without committing and join again as a new member.",
        data_members=(DataMember("member_id", "id of the member"),),
    ),
    ProblemDefinition(
        "instance_fenced",
        409,
        "Another instance took the place",
        FENCED,
        "Another member joined under the same static instance id.",
        "Stop this instance; every running instance needs an id of its own.",
        data_members=(DataMember("instance_id", "static instance id"),),
    ),
    ProblemDefinition(
        "reassignment_in_progress",
        409,
        "A reassignment is in progress",
        FIX,
        "The partition is already being moved.",
        "Wait for the move to end, or cancel it.",
        data_members=(TOPIC, PARTITION),
    ),
    ProblemDefinition(
        "restart_refused",
        409,
        "The restart is refused now",
        FIX,
        "Restarting this broker now would leave partitions without enough replicas, or another broker "
        "restarts.",
        "Wait until the partitions that the problem names are in sync again.",
        data_members=(DataMember("partitions", "partitions that forbid the restart"),),
    ),
    ProblemDefinition(
        "not_possible_now",
        409,
        "The operation is not possible as things are",
        FIX,
        "The request is well-formed, but the state of brokers or replicas forbids it: a replica is not in sync, a "
        "broker is still running, or a setting does not allow it. Nothing was changed.",
        "Bring about what the problem's detail names, then ask again.",
        data_members=(TOPIC, PARTITION, DataMember("broker", "id of the broker")),
    ),
    ProblemDefinition(
        "conflict",
        409,
        "Another caller changed it at the same time",
        FIX,
        "The state that the request was based on changed before it was applied. Nothing was changed by this "
        "request.",
        "Read the state again and decide again.",
    ),
    ProblemDefinition(
        "stale_member_epoch",
        412,
        "The member epoch is stale",
        FENCED,
        "The request carries a member epoch that is no longer the member's.",
        "Stop using what was assigned under the old epoch; the next heartbeat tells the new one.",
        data_members=(DataMember("member_epoch", "current epoch of the member"),),
    ),
    ProblemDefinition(
        "stale_leader_epoch",
        412,
        "The leader epoch is stale",
        REFRESH,
        "The partition has a newer leader epoch than the request names.",
        "Learn the metadata again; a consumer validates its position, then goes on.",
        data_members=(TOPIC, PARTITION, LEADER_EPOCH),
    ),
    ProblemDefinition(
        "unknown_leader_epoch",
        412,
        "The leader epoch is not known yet",
        REFRESH,
        "The request names a newer leader epoch than this broker has learned.",
        "Learn the metadata again and repeat the request shortly.",
        data_members=(TOPIC, PARTITION, LEADER_EPOCH),
    ),
    ProblemDefinition(
        "offset_expired",
        410,
        "The offset has expired",
        DATA_LOSS,
        "The fetch asks for an offset below the start of the log: retention or delete-records removed those "
        "records.",
        "Decide whether the gap matters, then continue at `log_start_offset` or `latest`.",
        data_members=(
            TOPIC,
            PARTITION,
            DataMember("offset", "offset that was asked for"),
            DataMember("log_start_offset", "first offset that can be read"),
        ),
    ),
    ProblemDefinition(
        "log_truncated",
        409,
        "The log was truncated",
        DATA_LOSS,
        "Records that the reader has seen are not in the log of the current leader: an unclean election "
        "lost them.",
        "Decide whether the loss matters, then continue at the end offset that the problem names.",
        data_members=(
            TOPIC,
            PARTITION,
            DataMember("epoch", "largest leader epoch that is not above the epoch seen by the reader"),
            DataMember("end_offset", "end offset of that epoch in the leader's log"),
        ),
    ),
    ProblemDefinition(
        "unknown_producer",
        409,
        "The producer is not known to the partition",
        DATA_LOSS,
        "The partition holds no state of this producer id and epoch, so it cannot tell whether earlier "
        "batches were stored. Nothing was appended by this request; earlier attempts may be stored.",
        "Take a new producer id and treat the batches that were being retried as perhaps stored.",
        data_members=(TOPIC, PARTITION, DataMember("producer_id", "id of the producer")),
    ),
)
