"""mqadmin's command names, each with the command of ours that does it. The flags are the same.

Source: apache/rocketmq tools/.../MQAdminStartup.java.
"""

from __future__ import annotations

from typing import Final

_PLACE: Final = "stratamq.cli.admin"

MQADMIN: Final = {
    "updateTopic": "topic:update",
    "updateStaticTopic": "static_topic:static_topic",
    "deleteTopic": "topic:delete",
    "updateTopicPerm": "topic:permission",
    "topicList": "topic:list_topics",
    "topicClusterList": "topic:clusters",
    "topicRoute": "topic:show_route",
    "topicStatus": "topic:status",
    "updateOrderConf": "topic:order",
    "allocateMQ": "topic:allocate",
    "statsAll": "topic:stats",
    "updateSubGroup": "group:update",
    "deleteSubGroup": "group:delete",
    "getConsumerConfig": "group:show",
    "setConsumeMode": "group:mode",
    "consumerProgress": "group:progress",
    "consumerConnection": "group:connections",
    "producerConnection": "group:producers",
    "producer": "group:all_producers",
    "consumerStatus": "group:status",
    "resetOffsetByTime": "offset:reset",
    "skipAccumulatedMessage": "offset:skip",
    "cloneGroupOffset": "offset:clone",
    "queryMsgById": "message:by_id",
    "queryMsgByKey": "message:by_key",
    "queryMsgByUniqueKey": "message:by_unique_key",
    "queryMsgByOffset": "message:by_offset",
    "queryMsgTraceById": "message:trace",
    "printMsg": "message:print_topic",
    "printMsgByQueue": "message:print_queue",
    "sendMessage": "message:send",
    "consumeMessage": "message:take",
    "sendMsgStatus": "message:send_status",
    "checkMsgSendRT": "message:send_times",
    "queryCq": "message:queue_units",
    "brokerStatus": "broker:status",
    "getBrokerConfig": "broker:config",
    "updateBrokerConfig": "broker:set_config",
    "wipeWritePerm": "broker:wipe_write",
    "addWritePerm": "broker:add_write",
    "cleanExpiredCQ": "broker:clean_queues",
    "deleteExpiredCommitLog": "broker:clean_log",
    "cleanUnusedTopic": "broker:clean_topics",
    "brokerConsumeStats": "broker:consume_stats",
    "haStatus": "broker:ha",
    "clusterList": "cluster:list_brokers",
    "clusterRT": "cluster:send_times",
    "getNamesrvConfig": "cluster:namesrv_config",
    "updateNamesrvConfig": "cluster:set_namesrv",
    "updateKvConfig": "cluster:set_kv",
    "deleteKvConfig": "cluster:delete_kv",
    "exportMetadata": "cluster:export_metadata",
    "exportConfigs": "cluster:export_configs",
    "exportMetrics": "cluster:export_metrics",
}


def target_of(name: str) -> str | None:
    """``module:attribute`` of the command that does what mqadmin's command of this name does; None for no such."""
    found = MQADMIN.get(name)
    return f"{_PLACE}.{found}" if found is not None else None
