"""Every scheme that may be registered has a way, and no other (REG-6)."""

from __future__ import annotations

import pytest

from reach.core.endpoint import Endpoint
from reach.transports.seam import Approach
from reach.transports.ways import WAYS, way_to
from reach.wire.addresses import SCHEMES, read_address


def test_REG_6_what_may_be_registered_can_be_dialled():
    assert set(WAYS) == set(SCHEMES)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_REG_6_a_way_carries_what_was_judged(scheme):
    address = read_address(f"{scheme.upper()}://agent.test:7000")
    assert (address.scheme, address.tls) == (scheme, scheme.endswith("s"))
    way = way_to(Endpoint(f"{scheme}://agent.test:7000"), Approach(address, ("192.0.2.1",), "", None, 1_000))
    assert way.payload_limit == 1_000
