"""One etcd for all tests of the folder, and journals that several nodes share."""

import pytest

from reach.store.base import SharedJournal
from reach.store.memory_shared import MemoryNode, MemoryShared
from reach.store.postgres import PostgresJournal
from tests import postgres
from tests.contracts.etcd_servers import EtcdServers, need_etcd


@pytest.fixture(scope="session")
def etcd_server(tmp_path_factory):
    need_etcd()
    servers = EtcdServers(tmp_path_factory.mktemp("etcd"))
    servers.start_all()
    try:
        yield servers
    finally:
        servers.kill_all()


@pytest.fixture(params=["memory", "postgres"])
def cluster(request):
    """Makes views of one store: one for each call."""
    made: list[SharedJournal] = []
    shared = MemoryShared()
    address = postgres.server().database() if request.param == "postgres" else ""

    def node() -> SharedJournal:
        one: SharedJournal = PostgresJournal(address) if address else MemoryNode(shared)
        one.open()
        made.append(one)
        return one

    yield node
    for one in made:
        one.close()
