"""The broker keys with an effect: listeners, sockets, logs, groups, transactions, ZooKeeper, and our own.

A row is all that a new key takes: its name with underscores is the attribute of `BrokerConfig` that has its value, of
the type that the annotation names; the values in parentheses are type, default, validator, importance, update mode and
documentation (`ConfigKey`). Without documentation, that of the topic key which inherits it is used
(`tables/topics.py`). Parts that use a key that may change in a running broker (CLUSTER_WIDE, PER_BROKER) follow it:
`LiveConfig`. Keys that are only accepted and listed are rows of `tables/other.py` and `tables/security.py`.

Defaults are Kafka's, except: the broker listens on 127.0.0.1, a lone broker has internal topics of one replica and does
not wait for more members of a new group.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from barnabas.broker.configuration.definitions import (
    BOOLEAN,
    CLUSTER_WIDE,
    DOUBLE,
    DOUBLE_MAX,
    HIGH,
    INT,
    INT_MAX,
    INTERNAL,
    LIST,
    LONG,
    LONG_MAX,
    LOW,
    MEDIUM,
    PASSWORD,
    PER_BROKER,
    READ_ONLY,
    SHORT,
    STRING,
    ConfigKey,
    limits_by_host,
)

if TYPE_CHECKING:
    from barnabas.broker.configuration.listeners import Listener

LEADER_SELECTOR: Final = "org.apache.kafka.common.replica.LeaderSelector"
RACK_AWARE_SELECTOR: Final = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


class BrokerKeys:
    """A row per key; objects of subclasses have the values.

    Attributes are the effective values: `log_retention_ms`, `log_roll_ms`, `log_roll_jitter_ms` and
    `log_flush_interval_ms` after their synonyms (-1 or LONG_MAX mean without limit, as in Kafka), `log_dirs` after
    `log.dir`, `listeners` after all keys about listeners. `BrokerConfig.value` returns the value of one key by itself.
    """

    # fmt: off
    add_partitions_to_txn_retry_backoff_max_ms: ConfigKey[int] = ConfigKey(INT, 100, ("min", 0), HIGH, READ_ONLY,
        "How long the broker retries to add a partition to a transaction.")
    add_partitions_to_txn_retry_backoff_ms: ConfigKey[int] = ConfigKey(INT, 20, ("min", 1), HIGH, READ_ONLY,
        "Pause between two tries to add a partition to a transaction.")
    advertised_listeners: ConfigKey[tuple[str, ...] | None] = ConfigKey(LIST, None, ("list",), HIGH, READ_ONLY,
        "Addresses that clients connect to, NAME://HOST:PORT,...; without it, those of listeners.")
    auto_create_topics_enable: ConfigKey[bool] = ConfigKey(BOOLEAN, True, None, HIGH, READ_ONLY,
        "Create a topic when a client asks for one that does not exist.")
    auto_leader_rebalance_enable: ConfigKey[bool] = ConfigKey(BOOLEAN, True, None, HIGH, READ_ONLY,
        "Elect the preferred replica of each partition again when it is in sync.")
    broker_id: ConfigKey[int] = ConfigKey(INT, -1, None, HIGH, READ_ONLY,
        "The id of this broker; the same as node.id.")
    broker_rack: ConfigKey[str | None] = ConfigKey(STRING, None, None, MEDIUM, READ_ONLY,
        "The rack of this broker; replicas are spread over racks.")
    compression_gzip_level: ConfigKey[int] = ConfigKey(INT, -1, ("range_or", 1, 9, -1), MEDIUM, CLUSTER_WIDE)
    compression_lz4_level: ConfigKey[int] = ConfigKey(INT, 9, ("range", 1, 17), MEDIUM, CLUSTER_WIDE)
    compression_type: ConfigKey[str] = ConfigKey(
        STRING, "producer", ("in", "uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"), HIGH, CLUSTER_WIDE)
    compression_zstd_level: ConfigKey[int] = ConfigKey(INT, 3, ("range", -131_072, 22), MEDIUM, CLUSTER_WIDE)
    connections_max_idle_ms: ConfigKey[int] = ConfigKey(LONG, 600_000, None, MEDIUM, READ_ONLY,
        "Connections that neither send nor receive anything for this long are closed.")
    controlled_shutdown_enable: ConfigKey[bool] = ConfigKey(BOOLEAN, True, None, MEDIUM, READ_ONLY,
        "Before a broker stops, its partitions get other leaders.")
    controller_quota_window_num: ConfigKey[int] = ConfigKey(INT, 11, ("min", 1), LOW, READ_ONLY,
        "How many samples of controller.quota.window.size.seconds a quota of controller mutations allows at once.")
    controller_quota_window_size_seconds: ConfigKey[int] = ConfigKey(INT, 1, ("min", 1), LOW, READ_ONLY,
        "The length of a sample of a quota of controller mutations.")
    default_replication_factor: ConfigKey[int] = ConfigKey(INT, 1, None, MEDIUM, READ_ONLY,
        "Replication factor of topics that are created without one.")
    delete_topic_enable: ConfigKey[bool] = ConfigKey(BOOLEAN, True, None, HIGH, READ_ONLY,
        "Whether topics can be deleted.")
    fetch_max_bytes: ConfigKey[int] = ConfigKey(INT, 57_671_680, ("min", 1024), MEDIUM, READ_ONLY,
        "The most bytes of one fetch response, whatever the client asks for.")
    follower_replication_throttled_rate: ConfigKey[int] = ConfigKey(
        LONG, LONG_MAX, ("min", 0), MEDIUM, CLUSTER_WIDE,
        "Bytes per second that throttled replicas fetch.", visibility=INTERNAL)
    group_initial_rebalance_delay_ms: ConfigKey[int] = ConfigKey(INT, 0, None, MEDIUM, READ_ONLY,
        "How long a new group waits for more members before its first assignment.")
    group_max_session_timeout_ms: ConfigKey[int] = ConfigKey(INT, 1_800_000, None, MEDIUM, READ_ONLY,
        "The longest session timeout a member may ask for.")
    group_max_size: ConfigKey[int] = ConfigKey(INT, INT_MAX, ("min", 1), MEDIUM, READ_ONLY,
        "The most members of one group.")
    group_min_session_timeout_ms: ConfigKey[int] = ConfigKey(INT, 6000, None, MEDIUM, READ_ONLY,
        "The shortest session timeout a member may ask for.")
    inter_broker_listener_name: ConfigKey[str] = ConfigKey(STRING, None, None, MEDIUM, READ_ONLY,
        "The listener that brokers use among themselves.")
    leader_imbalance_check_interval_seconds: ConfigKey[int] = ConfigKey(LONG, 300, ("min", 1), HIGH, READ_ONLY,
        "How often the controller looks for partitions whose preferred replica could lead but does not.")
    leader_replication_throttled_rate: ConfigKey[int] = ConfigKey(
        LONG, LONG_MAX, ("min", 0), MEDIUM, CLUSTER_WIDE,
        "Bytes per second that leaders serve to throttled replicas.", visibility=INTERNAL)
    listener_security_protocol_map: ConfigKey[str] = ConfigKey(
        STRING, "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT", None, LOW, PER_BROKER,
        "Security protocol of each listener name, NAME:PROTOCOL,...", is_fixed=True)
    listeners: ConfigKey[tuple[Listener, ...]] = ConfigKey(
        LIST, ("PLAINTEXT://127.0.0.1:9092",), ("list",), HIGH, PER_BROKER,
        "Addresses to listen on, NAME://HOST:PORT,...; no host means all addresses, port 0 any free port.",
        is_fixed=True)
    log_cleaner_backoff_ms: ConfigKey[int] = ConfigKey(LONG, 15_000, ("min", 0), MEDIUM, CLUSTER_WIDE,
        "Pause between two searches for logs to compact, after one that found none.")
    log_cleaner_dedupe_buffer_size: ConfigKey[int] = ConfigKey(LONG, 134_217_728, None, MEDIUM, CLUSTER_WIDE,
        "Bytes for the map of keys of a compaction pass.")
    log_cleaner_delete_retention_ms: ConfigKey[int] = ConfigKey(LONG, 86_400_000, ("min", 0), MEDIUM, CLUSTER_WIDE)
    log_cleaner_enable: ConfigKey[bool] = ConfigKey(BOOLEAN, True, None, MEDIUM, READ_ONLY,
        "Whether logs are compacted.")
    log_cleaner_io_buffer_load_factor: ConfigKey[float] = ConfigKey(DOUBLE, 0.9, None, MEDIUM, CLUSTER_WIDE,
        "How full the map of keys may get, as a share.")
    log_cleaner_io_max_bytes_per_second: ConfigKey[float] = ConfigKey(DOUBLE, DOUBLE_MAX, None, MEDIUM, CLUSTER_WIDE,
        "Bytes per second that a compaction pass may read and write; zero or less means no limit.")
    log_cleaner_max_compaction_lag_ms: ConfigKey[int] = ConfigKey(LONG, LONG_MAX, ("min", 1), MEDIUM, CLUSTER_WIDE)
    log_cleaner_min_cleanable_ratio: ConfigKey[float] = ConfigKey(DOUBLE, 0.5, ("range", 0, 1), MEDIUM, CLUSTER_WIDE)
    log_cleaner_min_compaction_lag_ms: ConfigKey[int] = ConfigKey(LONG, 0, ("min", 0), MEDIUM, CLUSTER_WIDE)
    log_cleaner_threads: ConfigKey[int] = ConfigKey(INT, 1, ("min", 0), MEDIUM, CLUSTER_WIDE,
        "One log is compacted at a time, whatever the number; 0 is none.")
    log_cleanup_policy: ConfigKey[tuple[str, ...]] = ConfigKey(
        LIST, ("delete",), ("list_or_empty", "compact", "delete"), MEDIUM, CLUSTER_WIDE)
    log_dir: ConfigKey[tuple[str, ...]] = ConfigKey(LIST, ("/tmp/kafka-logs",), ("list",), HIGH, READ_ONLY,
        "Where logs are kept when log.dirs is not set.")
    log_dirs: ConfigKey[tuple[str, ...]] = ConfigKey(LIST, None, ("list",), HIGH, READ_ONLY,
        "Directories where logs are kept.")
    log_flush_interval_messages: ConfigKey[int] = ConfigKey(LONG, LONG_MAX, ("min", 1), HIGH, CLUSTER_WIDE)
    log_flush_interval_ms: ConfigKey[int] = ConfigKey(
        LONG, None, None, HIGH, CLUSTER_WIDE, synonyms=("log.flush.scheduler.interval.ms",))
    log_flush_offset_checkpoint_interval_ms: ConfigKey[int] = ConfigKey(INT, 60_000, ("min", 0), HIGH, READ_ONLY,
        "How often the recovery points of all logs are written.")
    log_flush_scheduler_interval_ms: ConfigKey[int] = ConfigKey(LONG, LONG_MAX, None, HIGH, READ_ONLY,
        "How often the broker looks for records that must be forced to disk.")
    log_flush_start_offset_checkpoint_interval_ms: ConfigKey[int] = ConfigKey(INT, 60_000, ("min", 0), HIGH, READ_ONLY,
        "How often the start offsets of all logs are written.")
    log_index_interval_bytes: ConfigKey[int] = ConfigKey(INT, 4096, ("min", 0), MEDIUM, CLUSTER_WIDE)
    log_index_size_max_bytes: ConfigKey[int] = ConfigKey(INT, 10_485_760, ("min", 4), MEDIUM, CLUSTER_WIDE)
    log_message_timestamp_after_max_ms: ConfigKey[int] = ConfigKey(LONG, 3_600_000, ("min", 0), MEDIUM, CLUSTER_WIDE)
    log_message_timestamp_before_max_ms: ConfigKey[int] = ConfigKey(LONG, LONG_MAX, ("min", 0), MEDIUM, CLUSTER_WIDE)
    log_message_timestamp_type: ConfigKey[str] = ConfigKey(
        STRING, "CreateTime", ("in", "CreateTime", "LogAppendTime"), MEDIUM, CLUSTER_WIDE)
    log_preallocate: ConfigKey[bool] = ConfigKey(BOOLEAN, False, None, MEDIUM, CLUSTER_WIDE)
    log_retention_bytes: ConfigKey[int] = ConfigKey(LONG, -1, None, HIGH, CLUSTER_WIDE)
    log_retention_check_interval_ms: ConfigKey[int] = ConfigKey(LONG, 300_000, ("min", 1), MEDIUM, READ_ONLY,
        "How often the broker looks for segments to delete.")
    log_retention_hours: ConfigKey[int] = ConfigKey(INT, 168, None, HIGH, READ_ONLY,
        "Age in hours after which segments are deleted; log.retention.ms and .minutes come first.")
    log_retention_minutes: ConfigKey[int | None] = ConfigKey(INT, None, None, HIGH, READ_ONLY,
        "Age in minutes after which segments are deleted; log.retention.ms comes first.")
    log_retention_ms: ConfigKey[int] = ConfigKey(
        LONG, None, None, HIGH, CLUSTER_WIDE, synonyms=("log.retention.minutes", "log.retention.hours"))
    log_roll_hours: ConfigKey[int] = ConfigKey(INT, 168, ("min", 1), HIGH, READ_ONLY,
        "Age in hours at which a new segment is started; log.roll.ms comes first.")
    log_roll_jitter_hours: ConfigKey[int] = ConfigKey(INT, 0, ("min", 0), HIGH, READ_ONLY,
        "Random hours taken off log.roll.hours; log.roll.jitter.ms comes first.")
    log_roll_jitter_ms: ConfigKey[int] = ConfigKey(
        LONG, None, None, HIGH, CLUSTER_WIDE, synonyms=("log.roll.jitter.hours",))
    log_roll_ms: ConfigKey[int] = ConfigKey(LONG, None, None, HIGH, CLUSTER_WIDE, synonyms=("log.roll.hours",))
    log_segment_bytes: ConfigKey[int] = ConfigKey(INT, 1_073_741_824, ("min", 14), HIGH, CLUSTER_WIDE)
    log_segment_delete_delay_ms: ConfigKey[int] = ConfigKey(LONG, 60_000, ("min", 0), HIGH, CLUSTER_WIDE)
    max_connections: ConfigKey[int] = ConfigKey(INT, INT_MAX, ("min", 0), MEDIUM, CLUSTER_WIDE,
        "The most connections at a time.")
    max_connections_per_ip: ConfigKey[int] = ConfigKey(INT, INT_MAX, ("min", 0), MEDIUM, CLUSTER_WIDE,
        "The most connections at a time from one address.")
    max_connections_per_ip_overrides: ConfigKey[Mapping[str, int]] = ConfigKey(
        STRING, "", ("host_limits",), MEDIUM, CLUSTER_WIDE,
        "Other limits for single addresses, HOST:LIMIT,...", convert=limits_by_host)
    max_incremental_fetch_session_cache_slots: ConfigKey[int] = ConfigKey(INT, 1000, ("min", 0), MEDIUM, READ_ONLY,
        "How many incremental fetch sessions are remembered.")
    max_request_partition_size_limit: ConfigKey[int] = ConfigKey(INT, 2000, ("min", 1), MEDIUM, READ_ONLY,
        "The most partitions one reply of DescribeTopicPartitions describes; clients ask again for the rest.")
    message_max_bytes: ConfigKey[int] = ConfigKey(INT, 1_048_588, ("min", 0), HIGH, CLUSTER_WIDE)
    min_insync_replicas: ConfigKey[int] = ConfigKey(INT, 1, ("min", 1), HIGH, CLUSTER_WIDE)
    node_id: ConfigKey[int] = ConfigKey(INT, 1, ("min", 0), HIGH, READ_ONLY,
        "The id of this broker, unique in its cluster.")
    num_partitions: ConfigKey[int] = ConfigKey(INT, 1, ("min", 1), MEDIUM, READ_ONLY,
        "Partitions of topics that are created without a number.")
    num_recovery_threads_per_data_dir: ConfigKey[int] = ConfigKey(INT, 2, ("min", 1), HIGH, CLUSTER_WIDE,
        "Threads per log directory that open logs at the start and flush them at the stop.")
    offset_metadata_max_bytes: ConfigKey[int] = ConfigKey(INT, 4096, None, HIGH, READ_ONLY,
        "The longest text a consumer may commit with an offset.")
    offsets_commit_timeout_ms: ConfigKey[int] = ConfigKey(INT, 5000, ("min", 1), HIGH, READ_ONLY,
        "How long a commit waits for the replicas of the offsets topic.")
    offsets_retention_check_interval_ms: ConfigKey[int] = ConfigKey(LONG, 600_000, ("min", 1), HIGH, READ_ONLY,
        "How often the broker looks for expired offsets.")
    offsets_retention_minutes: ConfigKey[int] = ConfigKey(INT, 10_080, ("min", 1), HIGH, READ_ONLY,
        "How long offsets outlive their group's last member.")
    offsets_topic_compression_codec: ConfigKey[int] = ConfigKey(INT, 0, None, HIGH, READ_ONLY,
        "Compression of the offsets topic: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd.")
    offsets_topic_num_partitions: ConfigKey[int] = ConfigKey(INT, 50, ("min", 1), HIGH, READ_ONLY,
        "Partitions of the offsets topic.")
    offsets_topic_replication_factor: ConfigKey[int] = ConfigKey(SHORT, 1, ("min", 1), HIGH, READ_ONLY,
        "Replicas of the offsets topic; 3 with zookeeper.connect.")
    offsets_topic_segment_bytes: ConfigKey[int] = ConfigKey(INT, 104_857_600, ("min", 1), HIGH, READ_ONLY,
        "Segment size of the offsets topic.")
    producer_id_expiration_check_interval_ms: ConfigKey[int] = ConfigKey(
        INT, 600_000, ("min", 1), LOW, READ_ONLY,
        "How often the broker looks for producers that do not write any more.", visibility=INTERNAL)
    producer_id_expiration_ms: ConfigKey[int] = ConfigKey(INT, 86_400_000, ("min", 1), LOW, CLUSTER_WIDE,
        "How long a partition remembers a producer that does not write.")
    queued_max_request_bytes: ConfigKey[int] = ConfigKey(LONG, -1, None, MEDIUM, READ_ONLY,
        "Bytes of unfinished requests of all connections; -1 for no limit.")
    quota_window_num: ConfigKey[int] = ConfigKey(INT, 11, ("min", 1), LOW, READ_ONLY,
        "How many samples of quota.window.size.seconds the rates of clients with quotas are taken over.")
    quota_window_size_seconds: ConfigKey[int] = ConfigKey(INT, 1, ("min", 1), LOW, READ_ONLY,
        "The length of a sample of a rate; one throttle because of request time lasts no longer.")
    replica_fetch_backoff_ms: ConfigKey[int] = ConfigKey(INT, 1000, ("min", 0), MEDIUM, READ_ONLY,
        "How long a follower waits at most before it repeats a fetch that its leader refused.")
    replica_fetch_max_bytes: ConfigKey[int] = ConfigKey(INT, 1_048_576, ("min", 0), MEDIUM, READ_ONLY,
        "Bytes of each partition that a follower fetches at once.")
    replica_fetch_min_bytes: ConfigKey[int] = ConfigKey(INT, 1, None, HIGH, READ_ONLY,
        "Bytes for which a leader waits before it responds to a follower; 1 at least.")
    replica_fetch_response_max_bytes: ConfigKey[int] = ConfigKey(INT, 10_485_760, ("min", 0), MEDIUM, READ_ONLY,
        "Bytes of all partitions that a follower fetches at once.")
    replica_fetch_wait_max_ms: ConfigKey[int] = ConfigKey(INT, 500, None, HIGH, READ_ONLY,
        "How long a leader waits at most before it responds to a follower; 100 ms at least.")
    replica_high_watermark_checkpoint_interval_ms: ConfigKey[int] = ConfigKey(LONG, 5000, None, HIGH, READ_ONLY,
        "How often high watermarks are written to disk.")
    replica_lag_time_max_ms: ConfigKey[int] = ConfigKey(LONG, 30_000, None, HIGH, READ_ONLY,
        "A follower that has not caught up for longer is out of sync.")
    replica_selector_class: ConfigKey[str | None] = ConfigKey(
        STRING, None, ("in", LEADER_SELECTOR, RACK_AWARE_SELECTOR), MEDIUM, READ_ONLY,
        "The replica that consumers read from: the leader, or with Kafka's RackAwareReplicaSelector one in"
        " their rack (client.rack).")
    replica_socket_timeout_ms: ConfigKey[int] = ConfigKey(INT, 30_000, None, HIGH, READ_ONLY,
        "How long a leader's response to a follower may take.")
    request_timeout_ms: ConfigKey[int] = ConfigKey(INT, 30_000, None, HIGH, READ_ONLY,
        "How long a request to another broker may take.")
    socket_listen_backlog_size: ConfigKey[int] = ConfigKey(INT, 50, ("min", 1), MEDIUM, READ_ONLY,
        "Connections that may wait to be accepted.")
    socket_receive_buffer_bytes: ConfigKey[int] = ConfigKey(INT, 102_400, None, HIGH, READ_ONLY,
        "Receive buffer of a connection (SO_RCVBUF); -1 leaves it to the system.")
    socket_request_max_bytes: ConfigKey[int] = ConfigKey(INT, 104_857_600, ("min", 1), HIGH, READ_ONLY,
        "The largest request; a connection that announces a larger one is closed.")
    socket_send_buffer_bytes: ConfigKey[int] = ConfigKey(INT, 102_400, None, HIGH, READ_ONLY,
        "Send buffer of a connection (SO_SNDBUF); -1 leaves it to the system.")
    transaction_abort_timed_out_transaction_cleanup_interval_ms: ConfigKey[int] = ConfigKey(
        INT, 10_000, ("min", 1), LOW, READ_ONLY,
        "How often transactions that timed out are aborted.")
    transaction_max_timeout_ms: ConfigKey[int] = ConfigKey(INT, 900_000, ("min", 1), HIGH, READ_ONLY,
        "The longest transaction timeout a producer may ask for.")
    transaction_partition_verification_enable: ConfigKey[bool] = ConfigKey(BOOLEAN, True, None, LOW, CLUSTER_WIDE,
        "Check that a partition belongs to the transaction that writes to it.")
    transaction_remove_expired_transaction_cleanup_interval_ms: ConfigKey[int] = ConfigKey(
        INT, 3_600_000, ("min", 1), LOW, READ_ONLY,
        "How often unused transactional ids are removed.")
    transaction_state_log_min_isr: ConfigKey[int] = ConfigKey(INT, 1, ("min", 1), HIGH, READ_ONLY,
        "In-sync replicas that a write to the transaction topic needs; 2 with zookeeper.connect.")
    transaction_state_log_num_partitions: ConfigKey[int] = ConfigKey(INT, 50, ("min", 1), HIGH, READ_ONLY,
        "Partitions of the transaction topic.")
    transaction_state_log_replication_factor: ConfigKey[int] = ConfigKey(SHORT, 1, ("min", 1), HIGH, READ_ONLY,
        "Replicas of the transaction topic; 3 with zookeeper.connect.")
    transaction_state_log_segment_bytes: ConfigKey[int] = ConfigKey(INT, 104_857_600, ("min", 1), HIGH, READ_ONLY,
        "Segment size of the transaction topic.")
    transactional_id_expiration_ms: ConfigKey[int] = ConfigKey(INT, 604_800_000, ("min", 1), HIGH, READ_ONLY,
        "How long an unused transactional id is remembered.")
    unclean_leader_election_enable: ConfigKey[bool] = ConfigKey(BOOLEAN, False, None, HIGH, CLUSTER_WIDE)

    # ZooKeeper: keys of 3.9, listed where they are set, because 4.x does not have them.
    java_security_auth_login_config: ConfigKey[str | None] = ConfigKey(STRING, None, None, MEDIUM, READ_ONLY,
        "A JAAS file, whose section Client has the user with which the broker logs in to ZooKeeper; in Kafka a property"
        " of the JVM.", visibility=INTERNAL)
    zookeeper_connect: ConfigKey[str | None] = ConfigKey(STRING, None, None, HIGH, READ_ONLY,
        "ZooKeeper servers of the cluster, HOST:PORT,HOST:PORT/chroot; none for a broker alone.", visibility=INTERNAL)
    zookeeper_connection_timeout_ms: ConfigKey[int | None] = ConfigKey(INT, None, ("min", 1), HIGH, READ_ONLY,
        "How long a start waits for ZooKeeper; zookeeper.session.timeout.ms by default.", visibility=INTERNAL)
    zookeeper_max_in_flight_requests: ConfigKey[int] = ConfigKey(INT, 10, ("min", 1), HIGH, READ_ONLY,
        "Requests to ZooKeeper that wait for their responses at the same time.", visibility=INTERNAL)
    zookeeper_session_timeout_ms: ConfigKey[int] = ConfigKey(INT, 18_000, ("min", 1), HIGH, READ_ONLY,
        "A broker that is silent for this long counts as dead.", visibility=INTERNAL)
    zookeeper_set_acl: ConfigKey[bool] = ConfigKey(BOOLEAN, False, None, HIGH, READ_ONLY,
        "Whether znodes get ACLs: the broker's login may do everything, others may read what has no secrets.",
        visibility=INTERNAL)
    zookeeper_ssl_cipher_suites: ConfigKey[tuple[str, ...] | None] = ConfigKey(LIST, None, None, LOW, READ_ONLY,
        "Cipher suites of connections to ZooKeeper; by default all that are safe.", visibility=INTERNAL)
    zookeeper_ssl_client_enable: ConfigKey[bool] = ConfigKey(BOOLEAN, False, None, MEDIUM, READ_ONLY,
        "Whether connections to ZooKeeper have TLS.", visibility=INTERNAL)
    zookeeper_ssl_enabled_protocols: ConfigKey[tuple[str, ...] | None] = ConfigKey(LIST, None, None, LOW, READ_ONLY,
        "Versions of TLS for ZooKeeper, in place of zookeeper.ssl.protocol.", visibility=INTERNAL)
    zookeeper_ssl_endpoint_identification_algorithm: ConfigKey[str] = ConfigKey(STRING, "HTTPS", None, LOW, READ_ONLY,
        "Empty: the name of the host is not compared with ZooKeeper's certificate.", visibility=INTERNAL)
    zookeeper_ssl_keystore_location: ConfigKey[str | None] = ConfigKey(STRING, None, None, MEDIUM, READ_ONLY,
        "The key with which the broker logs in to ZooKeeper: a PEM or PKCS12 file.", visibility=INTERNAL)
    zookeeper_ssl_keystore_password: ConfigKey[str | None] = ConfigKey(PASSWORD, None, None, MEDIUM, READ_ONLY,
        "The password of that file, and of its key.", visibility=INTERNAL)
    zookeeper_ssl_keystore_type: ConfigKey[str | None] = ConfigKey(STRING, None, None, MEDIUM, READ_ONLY,
        "PEM or PKCS12; by default as the file's name ends.", visibility=INTERNAL)
    zookeeper_ssl_protocol: ConfigKey[str | None] = ConfigKey(STRING, None, None, LOW, READ_ONLY,
        "The version of TLS for ZooKeeper, TLSv1.2 or TLSv1.3; by default both.", visibility=INTERNAL)
    zookeeper_ssl_truststore_location: ConfigKey[str | None] = ConfigKey(STRING, None, None, MEDIUM, READ_ONLY,
        "The certificates by which ZooKeeper's is checked: a PEM or PKCS12 file; by default those of the machine.",
        visibility=INTERNAL)
    zookeeper_ssl_truststore_password: ConfigKey[str | None] = ConfigKey(PASSWORD, None, None, MEDIUM, READ_ONLY,
        "The password of that file.", visibility=INTERNAL)
    zookeeper_ssl_truststore_type: ConfigKey[str | None] = ConfigKey(STRING, None, None, MEDIUM, READ_ONLY,
        "PEM or PKCS12; by default as the file's name ends.", visibility=INTERNAL)

    # Ours.
    barnabas_zookeeper_digest: ConfigKey[str | None] = ConfigKey(PASSWORD, None, None, MEDIUM, READ_ONLY,
        "USER:PASSWORD, with which the broker logs in to ZooKeeper by the scheme digest (addauth).",
        visibility=INTERNAL)
    barnabas_cluster_id: ConfigKey[str | None] = ConfigKey(STRING, None, ("non_empty",), LOW, READ_ONLY,
        "Id of a new cluster; without it, a random one. CLUSTER_ID in the environment sets it.")
    barnabas_disk_reserve_bytes: ConfigKey[int] = ConfigKey(LONG, 67_108_864, ("min", 0), MEDIUM, READ_ONLY,
        "A log directory with less free space than this (or than a twentieth of its file system, if that is less) "
        "takes no records from clients; reads, deletions, compaction and commits go on.")
    barnabas_flush_before_ack: ConfigKey[bool] = ConfigKey(BOOLEAN, False, None, HIGH, READ_ONLY,
        "Acknowledge and show to consumers only what is on the disk; waiting producers share a flush.")
    barnabas_group_newcomer_delay_ms: ConfigKey[int] = ConfigKey(INT, 50, ("range", 0, 1000), LOW, READ_ONLY,
        "When a new member begins a rebalance, the coordinator waits this long for more members, and again if more "
        "came, at most a second in all; 0 does not wait, as Kafka.")
    barnabas_http_address: ConfigKey[str | None] = ConfigKey(STRING, None, None, LOW, READ_ONLY,
        "HOST:PORT for /healthz, /readyz and /metrics; without it there is no HTTP server.")
    barnabas_log_format: ConfigKey[str] = ConfigKey(STRING, "text", ("in", "text", "json"), LOW, READ_ONLY,
        "How log lines are written to standard error: text or json.")
    barnabas_log_level: ConfigKey[str] = ConfigKey(
        STRING, "INFO", ("in_ignoring_case", "DEBUG", "INFO", "WARNING", "ERROR"), LOW, READ_ONLY,
        "The least important log lines that are written: DEBUG, INFO, WARNING or ERROR.")
    barnabas_validate_records: ConfigKey[bool] = ConfigKey(BOOLEAN, False, None, MEDIUM, CLUSTER_WIDE,
        "Open every record, as Kafka does, instead of trusting a valid checksum.")
    # fmt: on
