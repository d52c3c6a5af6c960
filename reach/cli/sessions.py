"""`reach sessions`: what is known of conversations, and forgetting one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from reach.cli.exits import Exit
from reach.cli.settings import server_options, settings_of
from reach.cli.terminal import one_line, span, write, write_facts, write_json, write_table
from reach.cli.values import SESSION, session_text

if TYPE_CHECKING:
    from agentreach.v1 import attempt_pb2, session_pb2

_SHOWN: Final = 100
"""Characters of one side of a turn in a table."""


@click.group(short_help="Look at conversations, or forget one.")
def sessions() -> None:
    """Look at conversations, or forget one."""


@sessions.command("list")
@click.option("--app", "app_id", default="", help="Only of this application.")
@click.option("--user", "user_id", default="", help="Only of this user of it.")
@click.option("--limit", type=click.IntRange(1, 100_000), default=100, show_default=True, help="How many at most.")
@server_options
@click.pass_context
def list_sessions(context: click.Context, app_id: str, user_id: str, limit: int) -> int:
    """Conversations, those that were used last first."""
    from agentreach.v1 import session_pb2, session_pb2_grpc
    from reach.cli.messages import plain

    settings = settings_of(context)
    request = session_pb2.ListSessionsRequest(app_id=app_id, user_id=user_id)
    with settings.connect() as server:
        stub = session_pb2_grpc.SessionServiceStub(server.channel)
        found = server.listed(stub.ListSessions, request, "sessions", limit)
    if settings.json:
        write_json({"sessions": [plain(session) for session in found]})
        return Exit.OK
    if not found:
        write("No sessions. They begin with `reach dispatch --session APP:USER:SESSION …`.\n")
        return Exit.OK
    write_table(("<SESSION", "TURNS", "BYTES", "EXPIRES", "<WITH"), map(_row, found))
    return Exit.OK


@sessions.command()
@click.argument("session", type=SESSION)
@server_options
@click.pass_context
def show(context: click.Context, session: tuple[str, str, str]) -> int:
    """What is known of one conversation, and with whom it is."""
    from agentreach.v1 import session_pb2, session_pb2_grpc
    from reach.cli.messages import plain

    settings = settings_of(context)
    with settings.connect() as server:
        stub = session_pb2_grpc.SessionServiceStub(server.channel)
        found = server.ask(stub.GetSession, session_pb2.GetSessionRequest(key=_key(session))).session
    if settings.json:
        write_json(plain(found))
        return Exit.OK
    write_facts(_facts(found))
    if found.context.turns:
        write("\n")
        write_table(("<TASK", "<AGENT", "<USER", "<ANSWER"), map(_turn, found.context.turns))
    if found.context.summary:
        write("\nBefore:\n")
        for line in found.context.summary.splitlines():
            write(f"{one_line(line, 1000)}\n")
    return Exit.OK


@sessions.command()
@click.argument("session", type=SESSION)
@server_options
@click.pass_context
def delete(context: click.Context, session: tuple[str, str, str]) -> int:
    """Forget a conversation: what was said, and with whom it is. Its tasks that run go on; tasks and results stay."""
    from agentreach.v1 import session_pb2, session_pb2_grpc

    settings = settings_of(context)
    with settings.connect() as server:
        stub = session_pb2_grpc.SessionServiceStub(server.channel)
        server.ask(stub.DeleteSession, session_pb2.DeleteSessionRequest(key=_key(session)))
    if settings.json:
        write_json({"deleted": session_text(*session)})
    else:
        write(f"{one_line(session_text(*session))} is forgotten\n")
    return Exit.OK


def _key(session: tuple[str, str, str]) -> Any:
    from agentreach.v1 import task_pb2

    return task_pb2.SessionKey(app_id=session[0], user_id=session[1], session_id=session[2])


def _name(session: session_pb2.Session) -> str:
    key = session.key
    return one_line(session_text(key.app_id, key.user_id, key.session_id))


def _with(session: session_pb2.Session) -> str:
    return ", ".join(one_line(pin.instance_id) for pin in session.pins)


def _row(session: session_pb2.Session) -> tuple[str, ...]:
    counts = (str(session.turn_count), str(session.size_bytes))
    return (_name(session), *counts, span(session.expires_in.seconds), _with(session))


def _facts(session: session_pb2.Session) -> list[tuple[str, str]]:
    known = session.context
    facts = [
        ("session", _name(session)),
        ("turns", str(session.turn_count)),
        ("revision", str(known.revision)),
        ("expires in", span(session.expires_in.seconds)),
    ]
    for pin in session.pins:
        moved = f", moved {pin.handoffs} times" if pin.handoffs else ""
        facts.append((f"in {one_line(pin.pool)}", f"{one_line(pin.instance_id)}{moved}"))
    facts += [(f"said: {one_line(name)}", one_line(value)) for name, value in sorted(known.entities.items())]
    facts += [(f"inferred: {one_line(name)}", one_line(value)) for name, value in sorted(known.inferred.items())]
    return facts


def _turn(turn: attempt_pb2.Turn) -> tuple[str, ...]:
    sides = [turn.request.text, turn.response.text or turn.error]
    return (one_line(turn.task_id), one_line(turn.agent_id), *(one_line(side[:_SHOWN]) for side in sides))
