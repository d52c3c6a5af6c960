"""`reach route simulate`: what a policy would do with a stream of tasks, without a server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from reach.cli.exits import Exit
from reach.cli.policies import config_option, policies_in
from reach.cli.terminal import span, write, write_facts, write_json, write_table

if TYPE_CHECKING:
    from reach.playground.report import InstanceFigures, Report


@click.command()
@click.option("--trace", metavar="FILE|STORY", help="A trace, or a story of the package. Without: lists the stories.")
@click.option("--policy", "policies", metavar="NAME", multiple=True, help="Default: balanced. Repeatable: compares.")
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=1, show_default=True, help="Of arrivals and luck.")
@config_option
@click.option("--json", "as_json", is_flag=True, help="JSON for programs.")
def simulate(trace: str | None, policies: tuple[str, ...], seed: int, config: str | None, as_json: bool) -> int:
    """Play a trace of tasks and instances against a routing policy: latencies, errors, spread of load, hot spots.

    The decisions are those of the server's own core, on a clock that jumps: minutes take a second or so, and the same
    trace, policy and seed give the same figures.
    """
    from reach.playground.trace import load, stories
    from reach.playground.world import simulate as play

    if trace is None:
        told = [load(name) for name in stories()]
        if as_json:
            write_json({"stories": [{"name": one.name, "about": one.about} for one in told]})
        else:
            write_table(("STORY", "<ABOUT"), ((one.name, one.about) for one in told))
        return Exit.OK
    loaded = load(trace)
    known = policies_in(config)
    reports = [play(loaded, policy, seed, known) for policy in dict.fromkeys(policies) or ("balanced",)]
    if as_json:
        write_json({"reports": [report.as_dict() for report in reports]})
        return Exit.OK
    if len(reports) > 1:
        titles = ("POLICY", ">P50", ">P95", ">P99", ">ERRORS", ">RETRIES", ">HOTTEST", "<HOT SPOTS")
        write_table(titles, map(_compared, reports))
    for report in reports:
        if len(reports) > 1:
            write("\n")
        _show(report)
    return Exit.OK


def _show(report: Report) -> None:
    write_facts(
        [
            ("trace", f"{report.trace}, seed {report.seed}"),
            ("policy", report.policy),
            ("tasks", f"{report.tasks}: {report.succeeded} succeeded, {report.failed} failed"
                      + (f", {report.unfinished} did not end" if report.unfinished else "")),
            ("p50 p95 p99", " ".join(_ms(one) for one in (report.p50_ms, report.p95_ms, report.p99_ms))),
            ("errors", _percent(report.error_rate)),
            ("retries", f"{report.retries}, {report.transfers} of them elsewhere"),
        ]
    )  # fmt: skip
    write("\n")
    titles = ("INSTANCE", ">SHARE", ">FAIR", ">ATTEMPTS", ">FAILED", ">PEAK", ">SLOTS", ">BUSY", "<HOT SPOT")
    write_table(titles, map(_row, report.instances))


def _compared(report: Report) -> tuple[str, ...]:
    hottest = max(report.instances, key=lambda one: one.share / one.fair)
    return (
        report.policy,
        _ms(report.p50_ms),
        _ms(report.p95_ms),
        _ms(report.p99_ms),
        _percent(report.error_rate),
        str(report.retries),
        f"{hottest.name} {_percent(hottest.share)}",
        ", ".join(one.name for one in report.instances if one.hot),
    )


def _row(one: InstanceFigures) -> tuple[str, ...]:
    return (
        one.name,
        _percent(one.share),
        _percent(one.fair),
        str(one.attempts),
        str(one.failed),
        str(one.peak),
        str(one.slots),
        _percent(one.busy),
        one.hot,
    )


def _ms(milliseconds: float) -> str:
    return span(milliseconds / 1_000)


def _percent(share: float) -> str:
    return f"{share * 100:.1f} %"
