"""One etcd for all tests of the folder."""

import pytest

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
