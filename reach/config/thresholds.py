"""The limits of health, from the configuration to the core."""

from __future__ import annotations

from reach.config.sections import Config
from reach.core.health import Thresholds
from reach.core.reachability import ProbePeriods, ReachWeights


def thresholds_of(config: Config) -> Thresholds:
    """When what is held against an instance counts (HLT)."""
    health, probe = config.health, config.probe
    return Thresholds(
        unhealthy_beats=health.missed_beats,
        offline_ms=_ms(health.offline),
        periods=ProbePeriods(
            _ms(probe.interval), _ms(probe.retry_interval), _ms(probe.unreachable_interval), probe.fail_threshold
        ),
        weights=ReachWeights(
            health.reach_heartbeat,
            health.reach_rtt,
            health.reach_loss,
            _ms(health.reach_fresh),
            health.reach_rtt_good * 1_000,
            health.reach_rtt_bad * 1_000,
            health.reach_loss_bad,
        ),
        ready_beats=health.ready_beats,
        unready_ms=_ms(health.unready),
        slow_start_ms=_ms(health.slow_start),
        stall_factor=health.stall_factor,
        stall_floor_ms=_ms(health.stall_floor),
        self_failures=health.self_failures,
        panic_share=health.panic_share,
    )


def _ms(seconds: float) -> int:
    return round(seconds * 1_000)
