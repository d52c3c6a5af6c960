"""A thin asynchronous client of etcd 3.4 and later: what a cluster of nodes needs, and nothing else.

`connection.py`: endpoints, TLS, user and password, one call, one stream. `client.py`: range, txn, leases. `watch.py`:
a watch that goes on.
Why not a package: docs/decisions/0022-etcd-client.md.
"""

from reach.cluster.etcd_api.client import EtcdClient, KeyValue, LeaseGone, put, remove, unchanged, unless_equal
from reach.cluster.etcd_api.connection import Access, Connection, Stream
from reach.cluster.etcd_api.watch import Compacted, Followed, follow

__all__ = [
    "Access",
    "Compacted",
    "Connection",
    "EtcdClient",
    "Followed",
    "KeyValue",
    "LeaseGone",
    "Stream",
    "follow",
    "put",
    "remove",
    "unchanged",
    "unless_equal",
]
