"""Power cuts of machines of a simulated cluster, which may lose unsynced data.

If brokers sync before they acknowledge, no acknowledged record is lost, however many machines go down. If they do not,
as by default, other replicas have the records: a broker that returns after another boot may lack acknowledged records,
reports that when it registers, and leaves every ISR that has another member (`former_session.py`), or had one if it
takes two to commit. Therefore power is only cut for machines whose brokers are not the last complete replica of any
partition. Records that were lost there are lost for good if the other replicas leave the ISR before the controller
learns of the loss, because their sessions expired unnoticed: there is no guarantee for this case, and the run ends.
"""

from __future__ import annotations

from barnabas.controller.state import PartitionState
from tools.simulation.broker import SimulatedBroker
from tools.simulation.checks.guarantee import Guarantee
from tools.simulation.cluster import Cluster, TopicPartition
from tools.simulation.faults.replacement import Replacement
from tools.simulation.load.settings import Settings


class Power:
    """The power of one run's machines."""

    def __init__(self, cluster: Cluster, settings: Settings, replacement: Replacement, guarantee: Guarantee) -> None:
        self._cluster = cluster
        self._is_durable = cluster.around.is_durable
        self._settings = settings
        self._replacement = replacement
        self._guarantee = guarantee
        cluster.around.ready.append(cluster.lacking.discard)  # the controller knew that it may lack records

    def may_be_cut(self, broker: SimulatedBroker) -> bool:
        """Whether no acknowledged record is lost for good if a machine goes down now."""
        if self._is_durable:
            return True
        if self._replacement.is_due:
            return False  # its records may only be on replicas that have left the ISR
        with_all = self._settings.with_all
        return all(
            any(self._has_all(member) for member in with_all(partition, state) if member != broker.node_id)
            for partition, state in self._cluster.states.items()
            if broker.node_id in state.isr
        )

    def _has_all(self, node_id: int) -> bool:
        return node_id not in self._cluster.lacking and self._cluster.brokers[node_id].is_up

    def cut(self, broker: SimulatedBroker) -> None:
        """A machine has lost power. No other broker gets a random fault until the controller knows that it may lack
        records.
        """
        if not self._is_durable:
            self._cluster.lacking.add(broker.node_id)
            self._cluster.put_fuses_out()

    def written(self, partition: TopicPartition, state: PartitionState) -> None:
        """A partition's state was written in the metadata store."""
        lacking = self._cluster.lacking
        if lacking and lacking.issuperset(self._settings.with_all(partition, state)):
            self._guarantee.end("power")
