"""Real etcd, one member or three, on free ports in a folder of the test's."""

import asyncio
import contextlib
import json
import shutil

import pytest

from reach.cluster.etcd_api import Access, EtcdClient
from reach.testing.services import EtcdMembers, free_ports

__all__ = ["EtcdServers", "free_ports", "need_etcd"]


class EtcdServers(EtcdMembers):
    """What tests ask of it beyond its processes."""

    async def leader(self):
        """Number of the member that leads etcd."""
        for number, endpoint in enumerate(self.endpoints):
            said = json.loads(await self.ctl("endpoint", "status", "-w", "json", endpoint=endpoint))[0]["Status"]
            if said["leader"] == said["header"]["member_id"]:
                return number
        raise AssertionError("no member leads")

    async def ctl(self, *arguments, endpoint=None, extra=()):
        process = await asyncio.create_subprocess_exec(
            *("etcdctl", "--endpoints", endpoint or self.endpoints[0], *extra, *arguments),
            env={"ETCDCTL_API": "3", "PATH": "/usr/bin:/bin:/usr/local/bin"},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await process.communicate()
        assert process.returncode == 0, err.decode()
        return out.decode()

    async def ready(self, **access):
        client = EtcdClient(Access(self.endpoints, **access))
        try:
            for _ in range(100):
                with contextlib.suppress(Exception):
                    await client.get(b"x")
                    return
                await asyncio.sleep(0.1)
            raise AssertionError((self.folder / "m0.log").read_text()[-2000:])
        finally:
            await client.close()


def need_etcd():
    if shutil.which("etcd") is None or shutil.which("etcdctl") is None:
        pytest.skip("NOT TESTED: etcd is not installed (make services)")
