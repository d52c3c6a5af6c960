"""What is read of a status (REG-3, HLT-2)."""

import pytest

from agentreach.v1 import agent_pb2
from reach.core.instance_states import Availability
from reach.errors import InvalidRequest
from reach.wire.statuses import STATUS_BYTES, is_cut, read_status

FIELDS = agent_pb2.AgentStatus.DESCRIPTOR.fields


def test_REG_3_what_a_status_does_not_say_is_absent():
    assert read_status(agent_pb2.AgentStatus()) == {}


@pytest.mark.parametrize("field", list(FIELDS), ids=lambda field: field.name)
def test_REG_3_every_field_of_a_status_is_read_as_a_value_of_the_core(field):
    status = agent_pb2.AgentStatus(availability=agent_pb2.AVAILABILITY_BUSY)
    if field.name == "methods":
        status.methods.add(name="m", inflight=2)
    elif field.message_type is not None:
        getattr(status, field.name).FromMilliseconds(1_500)
    else:
        setattr(status, field.name, 1)
    said = read_status(status)
    expected = {"methods": {"m": 2}, "availability": Availability.READY}
    assert said[field.name] == expected.get(field.name, 1_500 if field.message_type is not None else 1)


def test_a_zero_that_is_said_is_kept():
    assert read_status(agent_pb2.AgentStatus(inflight=0, ready=False)) == {"inflight": 0, "ready": False}


def test_how_long_nothing_is_said_for_is_nothing():
    status = agent_pb2.AgentStatus()
    status.availability_ttl.seconds = 5
    assert read_status(status) == {}


@pytest.mark.parametrize(
    ("field", "value"), [("memory_watermark", 1.5), ("memory_watermark", float("nan")), ("max_concurrency", 0),
                         ("availability", 99)],
)  # fmt: skip
def test_a_figure_that_cannot_be_is_refused_by_its_name(field, value):
    with pytest.raises(InvalidRequest, match=f"status.{field}"):
        read_status(agent_pb2.AgentStatus(**{field: value}))


def test_HLT_2_a_status_over_2_kib_loses_its_methods_and_nothing_else():
    status = agent_pb2.AgentStatus(inflight=3)
    status.methods.add(name="m", inflight=1)
    assert not is_cut(status, read_status(status))
    status.methods.add(name="n" * STATUS_BYTES, inflight=1)
    said = read_status(status)
    assert said == {"inflight": 3}
    assert is_cut(status, said)
