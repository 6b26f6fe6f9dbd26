"""Who watches a trader: the dashboard beside it, alerts to its operator, and their own verbs."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stormsail.cli.output import publish, publish_now

if TYPE_CHECKING:
    from stormsail.core.clock import Clock
    from stormsail.execution.operator.dashboard.server import Dashboard
    from stormsail.execution.operator.status import Notice, Observer, Snapshot

ALERTS = "STORMSAIL_ALERTS"
"""Environment variable with the addresses of alert services, separated by spaces or lines."""

PORT = 8700
NOT_TAKEN = 1
"""Exit status of `stormsail alerts` where a service did not take the test."""

Port = Annotated[
    int | None,
    typer.Option(
        "--dashboard", min=0, max=65_535, help="Serve a dashboard on this port; 0 is a free one."
    ),
]
AlertFile = Annotated[
    Path | None,
    typer.Option(
        "--alerts", help=f"File with addresses of alert services, mode 600; or ${ALERTS}."
    ),
]


class AlertError(Exception):
    """A service did not take an alert."""


@dataclass(frozen=True)
class Watching:
    """What watches a trader.

    Attributes:
        port: of the dashboard; None without one.
        alerts: file with services; None takes them from the environment, if they are there.
    """

    port: int | None = None
    alerts: Path | None = None

    @contextmanager
    def around(self, folder: Path, clock: "Clock") -> Iterator[tuple["Observer", ...]]:
        """Yield the observers of a trader; what they need lives until it ends."""
        from stormsail.execution.operator.alerts import Alerts

        failures: list[str] = []
        with ExitStack() as stack:
            if self.port is not None:
                page = stack.enter_context(_dashboard(folder, self.port, clock))
                typer.echo(f"dashboard: {page.url} (kill button: {folder / 'dashboard.token'})")
            alerts = Alerts(
                alert_services(self.alerts),
                title=folder.name,
                clock=clock,
                on_failure=failures.append,
            )
            stack.enter_context(alerts)

            def observe(message: "Snapshot | Notice") -> None:
                from stormsail.execution.operator.alerts import Alert
                from stormsail.execution.operator.status import Notice

                if isinstance(message, Notice) and message.severity == "alarm":
                    place = f" {message.symbol}" if message.symbol else ""
                    alerts.send(Alert(message.name, f"{message.name}{place}: {message.words}"))
                if failures:  # as the failure of an observer it is kept in the journal
                    summary = "; ".join(failures.pop(0) for _ in range(len(failures)))
                    typer.echo(f"warning: {summary}", err=True)
                    raise AlertError(summary)

            yield (observe,)


def alert_services(file: Path | None) -> list[str]:
    """Return addresses of alert services from a file of mode 600, or from the environment.

    Raises:
        ConfigError: if others may read the file, or it is none.
    """
    if file is None:
        return os.environ.get(ALERTS, "").split()
    from stormsail.execution.secrets import read_private

    lines = read_private(file).splitlines()
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]


def _dashboard(folder: Path, port: int, clock: "Clock") -> "Dashboard":
    from stormsail.execution.operator.dashboard.folder import FolderView
    from stormsail.execution.operator.dashboard.server import Dashboard
    from stormsail.execution.operator.dashboard.token import load_or_create_token

    view = FolderView(folder, folder.name, clock)
    return Dashboard(view, view.kill, load_or_create_token(folder), port=port)


def dashboard(
    folder: Annotated[Path, typer.Argument(help="Folder of the account.")] = Path("trading/paper"),
    port: Annotated[int, typer.Option(min=0, max=65_535, help="0 takes a free one.")] = PORT,
    address: Annotated[
        str, typer.Option(help="Anything but 127.0.0.1 needs a certificate, and a token to read.")
    ] = "127.0.0.1",
    certificate: Annotated[Path | None, typer.Option(help="TLS certificate chain, PEM.")] = None,
    key: Annotated[Path | None, typer.Option(help="Its private key, PEM.")] = None,
    host: Annotated[
        list[str] | None, typer.Option(help="Further host names by which it is reached.")
    ] = None,
) -> None:
    """Serve the dashboard of an account, whether its trader runs or not, until Ctrl-C."""
    import threading

    from stormsail.core.clock import SystemClock
    from stormsail.core.errors import ConfigError
    from stormsail.execution.journal import NAME, Journal
    from stormsail.execution.operator.dashboard.folder import FolderView
    from stormsail.execution.operator.dashboard.server import Certificate, Dashboard
    from stormsail.execution.operator.dashboard.token import load_or_create_token

    Journal.reading(folder / NAME).close()  # a folder that is no account is refused
    if (certificate is None) != (key is None):
        raise ConfigError(
            "config-inconsistent",
            wrong="a certificate and its key must be given together",
            found="one of them",
            remedy="Pass `--certificate` and `--key`.",
        )
    files = Certificate(certificate, key) if certificate and key else None
    view = FolderView(folder, folder.name, SystemClock())
    with Dashboard(
        view,
        view.kill,
        load_or_create_token(folder),
        address=address,
        port=port,
        certificate=files,
        names=tuple(host or ()),
    ) as page:
        typer.echo(f"dashboard: {page.url} (kill button: {folder / 'dashboard.token'})")
        publish_now(url=page.url)
        threading.Event().wait()


def alerts(
    file: Annotated[
        Path | None, typer.Argument(help=f"File with addresses, mode 600; default ${ALERTS}.")
    ] = None,
) -> None:
    """Send a test line to every alert service; exit 1 where one does not take it."""
    from stormsail.core.clock import SystemClock
    from stormsail.core.errors import ConfigError
    from stormsail.execution.operator.alerts import Alerts

    services = alert_services(file)
    if not services:
        raise ConfigError(
            "config-value",
            wrong="there must be an alert service to test",
            found="none",
            remedy=f"Put addresses into a file of mode 600, or into ${ALERTS}.",
        )
    failures: list[str] = []
    made = Alerts(services, title="stormsail", clock=SystemClock(), on_failure=failures.append)
    taken = made.test()
    publish(services=taken)
    for name, took in taken.items():
        typer.echo(f"{name}: {'taken' if took else 'NOT taken'}")
    if not all(taken.values()):
        raise typer.Exit(NOT_TAKEN)
