"""What callers ask for, at random."""

from __future__ import annotations

from random import Random

from agentreach.v1 import task_pb2
from reach.testing.sim.faults import Dice
from reach.testing.sim.webhooks import url_of

TYPES = ("echo", "mail")
RETRIES = ("ladder", "quick", "patient", "exponential")


def spec_of(random: Random, dice: Dice, task_id: str, tenant: str = "acme") -> task_pb2.TaskSpec:
    """A request."""
    spec = task_pb2.TaskSpec(task_id=task_id)
    spec.payload.text = f"do {task_id}" + " please" * random.choice((0, 9))
    agent_type = random.choice(TYPES)
    if random.random() < 0.8:
        spec.selector.agent_type = agent_type
    else:
        spec.selector.capability = f"can-{agent_type}"
    if random.random() < dice.volatile:
        spec.durability = task_pb2.DURABILITY_VOLATILE
    if random.random() < dice.effects:
        spec.effects = task_pb2.EFFECTS_IRREVERSIBLE
    if random.random() < dice.sessions:
        spec.session.app_id, spec.session.user_id = "app", "user"
        spec.session.session_id = random.choice(("s1", "s2", "s3"))
    if spec.durability != task_pb2.DURABILITY_VOLATILE and random.random() < dice.webhooks:
        spec.webhook.url = url_of(random, tenant)
    spec.cancel_with_caller = random.random() < 0.03
    if random.random() < 0.2:
        spec.cost_slots = random.choice((1, 2))
    spec.priority = random.randrange(10)
    _limit(random, spec)
    return spec


def _limit(random: Random, spec: task_pb2.TaskSpec) -> None:
    """How often, how late, and how long."""
    if random.random() < 0.5:
        spec.retry.name = random.choice(RETRIES)
    elif random.random() < 0.1:
        spec.retry.never = True
    if random.random() < 0.15:
        spec.start_delay.FromMilliseconds(random.choice((50, 3_000)))
    if random.random() < 0.2:
        spec.timeouts.start_to_close.FromMilliseconds(random.choice((200, 2_000, 15_000)))
    if random.random() < 0.1:
        spec.timeouts.schedule_to_start.FromMilliseconds(random.choice((500, 5_000)))
    if random.random() < 0.1:
        spec.timeouts.schedule_to_close.FromMilliseconds(random.choice((1_000, 10_000)))
    if random.random() < 0.1:
        spec.timeouts.silence.FromMilliseconds(random.choice((500, 3_000)))
