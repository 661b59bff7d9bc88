"""Problems of valid requests that conflict with the state of topics, groups, producers or logs.

The module is a part of the problem catalogue, which `problems` assembles.
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
LEADER_EPOCH: Final = DataMember("leader_epoch", "leader epoch known to the broker")
EXPECTED: Final = DataMember("expected", "value that the broker expected")

STATE_PROBLEMS: Final = (
    ProblemDefinition(
        "topic_not_found",
        404,
        "The topic does not exist",
        FIX,
        "No topic has this name or id, or the topic is being deleted.",
        "Check the name, or create the topic.",
        data_members=(TOPIC, DataMember("topic_id", "id of the topic")),
    ),
    ProblemDefinition(
        "partition_not_found",
        404,
        "The partition does not exist",
        FIX,
        "The topic exists, but has no partition with this index.",
        "Use an index below the number of partitions.",
        data_members=(TOPIC, PARTITION, DataMember("partitions", "number of partitions of the topic")),
    ),
    ProblemDefinition(
        "group_not_found",
        404,
        "The group does not exist",
        FIX,
        "No group with this name has members or committed offsets.",
        "Check the name; a group is created when its first member joins.",
        data_members=(DataMember("group", "name of the group"),),
    ),
    ProblemDefinition(
        "member_not_found",
        404,
        "The member does not exist",
        FIX,
        "The group has no member with this id: the member left, or its session expired.",
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
        "This listener has no call with this path.",
        "Check the path; `/openapi.json` lists all paths.",
    ),
    ProblemDefinition(
        "topic_exists",
        409,
        "The topic exists with a different specification",
        FIX,
        "A topic with this name exists with a specification that differs from the request. (An equal specification "
        "is answered with 200.)",
        "Choose a different name, or alter the existing topic.",
        data_members=(TOPIC,),
    ),
    ProblemDefinition(
        "topic_recreated",
        409,
        "The topic was deleted and created again",
        REFRESH,
        "The topic id sent with the request belongs to an earlier topic of the same name.",
        "Fetch the metadata again and decide whether to use the new topic: its offsets start again at 0.",
        data_members=(TOPIC, EXPECTED, DataMember("actual", "id of the live topic")),
    ),
    ProblemDefinition(
        "out_of_order_sequence",
        409,
        "The sequence is out of order",
        FIX,
        "A batch from an idempotent producer arrived before an earlier batch, which did not follow within a second, or "
        "the batch is older than the last five batches and not a retry of one of them. Nothing was appended.",
        "Send the missing batch first. If an SDK receives this problem, the SDK has lost a batch: report the error.",
        data_members=(TOPIC, PARTITION, EXPECTED),
    ),
    ProblemDefinition(
        "group_not_empty",
        409,
        "The group has members",
        FIX,
        "The operation requires a group without members.",
        "Stop the members of the group, or wait for their sessions to end.",
        data_members=(DataMember("group", "name of the group"),),
    ),
    ProblemDefinition(
        "member_fenced",
        409,
        "The member was fenced",
        FENCED,
        "The member's partitions were assigned to other members because it did not send a heartbeat in time.",
        "Give up the partitions without committing and join again as a new member.",
        data_members=(DataMember("member_id", "id of the member"),),
    ),
    ProblemDefinition(
        "instance_fenced",
        409,
        "Another instance took over",
        FENCED,
        "Another member joined under the same static instance id.",
        "Stop this instance; every running instance needs its own instance id.",
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
        "too_many_partitions",
        409,
        "The brokers have no room for the partitions",
        FIX,
        "The new replicas would exceed the maximum number of replicas on brokers (`partitions_max`). Nothing was "
        "changed.",
        "Use fewer partitions, delete topics, add brokers, or raise the brokers' limit.",
        data_members=(
            TOPIC,
            DataMember("broker", "id of the broker with the least room"),
            DataMember("limit", "maximum number of replicas on this broker"),
            DataMember(
                "count", "number of replicas on this broker, including replicas of operations in progress"
            ),
        ),
    ),
    ProblemDefinition(
        "restart_refused",
        409,
        "The restart is refused now",
        FIX,
        "A restart of this broker would leave partitions without enough replicas, or another broker is being "
        "restarted.",
        "Wait until the partitions that the problem names are in sync again.",
        data_members=(
            DataMember("partitions", "partitions that prevent the restart"),
            DataMember(
                "quorums",
                "of each of these partitions with a write quorum, `partition`, the number of other voters that are "
                "`near`, and the number that is `needed`",
            ),
        ),
    ),
    ProblemDefinition(
        "not_possible_now",
        409,
        "The operation is not possible in the current state",
        FIX,
        "The request is well-formed, but the state of brokers or replicas does not allow it: a replica is not in sync, "
        "a broker is still running, or a setting forbids it. Nothing was changed.",
        "Establish the state that the problem's detail names, then retry.",
        data_members=(TOPIC, PARTITION, DataMember("broker", "id of the broker")),
    ),
    ProblemDefinition(
        "conflict",
        409,
        "Another caller changed the same state",
        FIX,
        "The state on which the request was based has changed in the meantime. Nothing was changed by this request.",
        "Read the new state and decide whether to send the request again.",
    ),
    ProblemDefinition(
        "stale_member_epoch",
        412,
        "The member epoch is stale",
        FENCED,
        "The member epoch in the request is no longer the current epoch of the member.",
        "Stop using the partitions assigned in the old epoch; the answer to the next heartbeat has the new epoch.",
        data_members=(DataMember("member_epoch", "current epoch of the member"),),
    ),
    ProblemDefinition(
        "stale_leader_epoch",
        412,
        "The leader epoch is stale",
        REFRESH,
        "The partition has a newer leader epoch than the request names.",
        "Fetch the metadata again; a consumer validates its position and then continues.",
        data_members=(TOPIC, PARTITION, LEADER_EPOCH),
    ),
    ProblemDefinition(
        "unknown_leader_epoch",
        412,
        "The leader epoch is not known yet",
        REFRESH,
        "The request names a leader epoch newer than any known to this broker.",
        "Fetch the metadata again and retry shortly.",
        data_members=(TOPIC, PARTITION, LEADER_EPOCH),
    ),
    ProblemDefinition(
        "offset_expired",
        410,
        "The offset has expired",
        DATA_LOSS,
        "The fetch requests an offset below the start of the log: retention or delete-records removed these "
        "records.",
        "Decide whether the gap matters, then continue at `log_start_offset` or `latest`.",
        data_members=(
            TOPIC,
            PARTITION,
            DataMember("offset", "requested offset"),
            DataMember("log_start_offset", "first offset that can be read"),
            DataMember("deleted_epoch", "leader epoch of the last deleted record, if known"),
            DataMember("deleted_epoch_start", "offset at which that leader epoch began, if known"),
        ),
    ),
    ProblemDefinition(
        "log_truncated",
        409,
        "The log was truncated",
        DATA_LOSS,
        "Records that the consumer has seen are not in the log of the current leader: an unclean election "
        "lost them.",
        "Decide whether the loss matters, then continue at the end offset that the problem names.",
        data_members=(
            TOPIC,
            PARTITION,
            DataMember("epoch", "largest leader epoch that does not exceed the epoch seen by the consumer"),
            DataMember("end_offset", "end offset of that epoch in the leader's log"),
        ),
    ),
    ProblemDefinition(
        "unknown_producer",
        409,
        "The producer is not known to the partition",
        DATA_LOSS,
        "The partition has no state for this producer id and epoch, so it cannot determine whether earlier "
        "batches were stored. Nothing was appended by this request; earlier attempts may have been stored.",
        "Allocate a new producer id and treat the retried batches as possibly stored.",
        data_members=(TOPIC, PARTITION, DataMember("producer_id", "id of the producer")),
    ),
)
