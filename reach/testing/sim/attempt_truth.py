"""What must be true of attempts: one at a time, at one place, with one effect; what the server tells agents of them is
written down, and what agents do was allowed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from reach.core.model import TaskKey

if TYPE_CHECKING:
    from reach.testing.sim.checker import Checker


class AttemptTruth:
    """The attempts as the journal, the server and the agents made them. Belongs to a `Checker`."""

    def __init__(self, checker: Checker) -> None:
        self._checker = checker
        self._violate = checker.violate

    # -- the journal --------------------------------------------------------------------------------------------------

    def begun(self, key: TaskKey, number: int, instance: str, reserved: int, offered_wall_ms: int) -> None:
        """An attempt is durable, with the event numbers that are reserved by now, and when it was decided."""
        known = self._checker.tasks[key]
        known.reserved = max(known.reserved, reserved)
        before = known.attempts.get(number)
        if before is not None:
            if before != instance:
                self._violate("ONE_ATTEMPT", key, f"attempt {number} is at {before} and at {instance}")
            return
        latest = max(known.attempts, default=0)
        if number != latest + 1:
            self._violate("ATTEMPTS_COUNT_UP", key, f"attempt {number} follows attempt {latest}")
        if latest and latest not in known.failed:
            self._violate("ONE_LIVE_ATTEMPT", key, f"attempt {number} began, and attempt {latest} was not given up")
        if known.outcome is not None:
            self._violate("NOT_RUN_AGAIN", key, f"attempt {number} began after the task had ended")
        known.attempts[number] = instance
        self._checker.fleet.begun(key, number, instance, offered_wall_ms)

    def effect(self, key: TaskKey, number: int) -> None:
        """The grant of the effect to an attempt is durable; a negative number: it was handed back."""
        known = self._checker.tasks[key]
        if number < 0:
            known.effects.discard(-number)
            return
        known.effects.add(number)
        if len(known.effects) > 1:
            self._violate("ONE_EFFECT", key, f"the effect was granted to attempts {sorted(known.effects)}")

    def winner(self, key: TaskKey, attempt: int, instance: str, content: Any) -> None:
        """An attempt ended its task with an answer, which it must have given."""
        known = self._checker.truth(key)
        said = known.said.get((attempt, instance), set())
        if known.past is not None:  # an agent that was away says of an attempt what it has said of one before
            said = said | known.past.said.get((attempt, instance), set())
        if content not in said:
            message = f"attempt {attempt} at {instance} has not said {content!r}, but {sorted(said)[:3]}"
            self._violate("ANSWER_IS_THE_WINNERS", key, message)

    # -- what the server says to agents -------------------------------------------------------------------------------

    def offered(self, key: TaskKey, attempt: int, instance: str, checkpoint: bytes | None = None) -> None:
        """The server sends an attempt to an instance, with what earlier ones have saved."""
        known = self._checker.living(key)
        if known.outcome is not None or (known.volatile and known.told is not None):
            self._violate("NOT_RUN_AGAIN", key, f"attempt {attempt} is offered to {instance} after the task has ended")
        if not known.volatile and known.attempts.get(attempt) != instance:
            self._violate("OFFER_IS_DURABLE", key, f"attempt {attempt} at {instance} is offered and not written down")
        if not known.volatile and checkpoint != known.checkpoint:
            self._violate("CHECKPOINT_IS_LATEST", key, f"{checkpoint!r} goes along, {known.checkpoint!r} is written")
        latest = max(known.attempts, default=0)
        if not known.volatile and attempt != latest:
            self._violate("OFFER_IS_CURRENT", key, f"attempt {attempt} is offered, {latest} is current")
        before = known.offered.get(attempt)
        if before is not None and before != instance:
            self._violate("ONE_ATTEMPT", key, f"attempt {attempt} is offered to {instance} and was to {before}")
        if attempt < max(known.offered, default=0):
            self._violate("OFFER_IS_CURRENT", key, f"attempt {attempt} is offered after {max(known.offered)}")
        known.offered[attempt] = instance

    def granted(self, key: TaskKey, attempt: int, instance: str) -> None:
        """The server allows an attempt its effect."""
        known = self._checker.truth(key)
        if known.given and known.given != {attempt}:
            self._violate("ONE_EFFECT", key, f"the effect is granted to attempts {known.given} and {attempt}")
        if attempt < max(known.offered, default=0):
            self._violate(
                "GRANT_IS_CURRENT", key, f"attempt {attempt} gets the effect, {max(known.offered)} is current"
            )
        if not known.volatile:
            if attempt not in known.effects:
                self._violate("GRANT_IS_DURABLE", key, f"the grant to attempt {attempt} is not written down")
            latest = max(known.attempts, default=0)
            if attempt != latest:
                self._violate("GRANT_IS_CURRENT", key, f"attempt {attempt} gets the effect, {latest} is written down")
            if known.outcome is not None:
                self._violate("GRANT_IS_CURRENT", key, f"attempt {attempt} gets the effect of a task that has ended")
        known.given.add(attempt)

    def handed_back(self, key: TaskKey, attempt: int) -> None:
        """An attempt has certainly not begun: nobody got it, or an agent refused it. Nor has its effect."""
        known = self._checker.truth(key)
        known.given.discard(attempt)

    def acknowledged(self, key: TaskKey, attempt: int, answered: bool) -> None:
        """The server says that the outcome of an attempt is safe. `answered`: the agent had said success."""
        known = self._checker.meant(key)
        if known.volatile or known.outcome is not None or known.past is not None:
            if answered and known.told_at is None:
                known.told_at = self._checker.now()
            return
        if answered:
            self._violate("ACKNOWLEDGED_IS_DURABLE", key, f"the answer of attempt {attempt} is not written down")
        elif attempt not in known.failed:
            self._violate("ACKNOWLEDGED_IS_DURABLE", key, f"the failure of attempt {attempt} is not written down")

    # -- what agents do -----------------------------------------------------------------------------------------------

    def says(self, key: TaskKey, attempt: int, instance: str, content: Any) -> None:
        """An agent gives an answer, in whole or as the last of its pieces."""
        self._checker.truth(key).said.setdefault((attempt, instance), set()).add(content)

    def refuses(self, key: TaskKey, attempt: int, instance: str) -> None:
        """An outcome that says it all is not taken, for there is no link: an agent that takes that for its fault gives
        the work away that it has done."""
        self._violate("OUTCOMES_ARE_TAKEN", key, f"the outcome of attempt {attempt} at {instance} is out of order")

    def acts(self, key: TaskKey, attempt: int, instance: str) -> None:
        """An agent does what cannot be undone."""
        known = self._checker.truth(key)
        known.acted.append((attempt, instance))
        if known.reborn:
            return
        if attempt not in known.given:
            self._violate("ACTS_WHEN_GRANTED", key, f"attempt {attempt} at {instance} acts without a grant")
        if len(known.acted) > 1:
            self._violate("ONE_EFFECT", key, f"the effect happened {len(known.acted)} times: {known.acted}")
