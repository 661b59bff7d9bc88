"""Problems of links, mirrors and topics that were handed over to another cluster.

The module is a part of the problem catalogue, which `problems` assembles.
"""

from __future__ import annotations

from typing import Final

from fairlead_api.problems.definitions import DataMember, ProblemDefinition, ProblemKind

FIX: Final = ProblemKind.FIX
TOPIC: Final = DataMember("topic", "name of the topic")
LINK: Final = DataMember("link", "name of the link")
CLUSTER: Final = DataMember("cluster_id", "id of the other cluster")
BOOTSTRAP: Final = DataMember("bootstrap", "base URLs of brokers of the other cluster")

LINK_PROBLEMS: Final = (
    ProblemDefinition(
        "invalid_link",
        422,
        "The link is invalid",
        FIX,
        "A field of the link is not allowed, or the link's source is this cluster.",
        "Correct the field that the problem names.",
        data_members=(DataMember("field", "name of the field"),),
    ),
    ProblemDefinition(
        "link_not_found",
        404,
        "The link does not exist",
        FIX,
        "No link has this name.",
        "Check the name with `GET /v1/links`.",
        data_members=(LINK,),
    ),
    ProblemDefinition(
        "link_exists",
        409,
        "The link exists with a different specification",
        FIX,
        "A link with this name exists with a specification that differs from the request. (An equal specification is "
        "answered with 200.)",
        "Choose a different name, or delete the existing link.",
        data_members=(LINK,),
    ),
    ProblemDefinition(
        "link_in_use",
        409,
        "The link has mirrors",
        FIX,
        "Topics of this cluster are mirrors of the link.",
        "Promote or delete the mirrors first.",
        data_members=(LINK, DataMember("topics", "names of at most 20 mirrors")),
    ),
    ProblemDefinition(
        "link_source_unreachable",
        503,
        "The source of the link does not answer",
        ProblemKind.RETRY,
        "No broker of the source answered, or the source refused the call.",
        "Check the addresses of the source and the credentials of the link, then send the request again.",
        data_members=(LINK,),
    ),
    ProblemDefinition(
        "link_source_changed",
        409,
        "Another cluster answers at the address of the source",
        FIX,
        "The cluster id of the source differs from the id that was stored when the link was created.",
        "Correct the addresses, or create another link.",
        data_members=(
            LINK,
            DataMember("expected", "id of the source"),
            DataMember("actual", "id of the answering cluster"),
        ),
    ),
    ProblemDefinition(
        "topic_is_mirror",
        409,
        "The topic is a mirror",
        FIX,
        "A link writes this topic with the records of another cluster, so the topic accepts no records and no change "
        "from clients.",
        "Send the request to the source of the link, or promote the mirror first.",
        data_members=(
            TOPIC,
            LINK,
            DataMember("source", "id of the cluster from which the link copies the topic"),
        ),
    ),
    ProblemDefinition(
        "topic_moved",
        409,
        "The topic has moved to another cluster",
        FIX,
        "The topic was handed over to a mirror in another cluster, which accepts its records.",
        "Send the request to the cluster that the problem names.",
        data_members=(TOPIC, CLUSTER, BOOTSTRAP),
    ),
    ProblemDefinition(
        "histories_diverged",
        409,
        "The topic and its copy have different histories",
        FIX,
        "The topic has another id than the topic of the source, or was promoted after the source received its records, "
        "so its records cannot be continued by those of the source.",
        "Keep the topic, or delete it and let the link copy the source's topic.",
        data_members=(
            TOPIC,
            LINK,
            DataMember(
                "era", "leader epoch of the first promotion that only one of them has; null without one"
            ),
            DataMember("both", "ids of the clusters whose promotions the other topic does not have"),
        ),
    ),
    ProblemDefinition(
        "not_handed_over",
        409,
        "The topic is not handed over",
        FIX,
        "The topic accepts records, or is handed over to another cluster than the request names.",
        "Check the topic with `GET /v1/topics/{topic}`.",
        data_members=(TOPIC,),
    ),
)
