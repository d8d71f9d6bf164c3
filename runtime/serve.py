"""A service on a socket: uvicorn around the app, and an end that answers what was begun.

Knows nothing of bundles; the port is taken before one is loaded, so that a port in use costs no wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from types import FrameType

import click
import uvicorn

from tandem.errors import TandemError
from tandem.runtime.http.app import build_app
from tandem.runtime.http.connection import Connection
from tandem.runtime.http.edge import Edge
from tandem.runtime.service import Service

DRAIN_SECONDS = 60.0
"""How long requests in flight may go on after SIGTERM; a second signal ends them at once."""

DRAIN_STEP_SECONDS = 0.2
BACKLOG = 128
SEND_SECONDS = 5
"""How long clients may take to read what is already said, once the engine has stopped."""

_logger = logging.getLogger(__name__)


def bind(host: str, port: int) -> socket.socket:
    """A socket bound to `host` and `port`, not listening yet. Raises TandemError when it cannot be had."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with contextlib.ExitStack() as stack:
            bound = stack.enter_context(socket.socket(family, kind, protocol))
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
            stack.pop_all()
    except OSError as error:
        raise TandemError(
            f"cannot listen on {host}:{port}: {error.strerror}; choose another --host or --port"
        ) from error
    return bound


def serve(service: Service, bound: socket.socket, *, api_key: str | None = None) -> None:
    """Answer on `bound` until SIGTERM or SIGINT; returns once all answers are out, and stops the worker."""
    app = build_app(service, api_key=api_key)
    config = uvicorn.Config(
        app,
        http=Connection,
        ws="none",  # nothing here speaks it, and its requests would come past the key
        log_config=None,
        access_log=False,
        lifespan="off",
        server_header=False,
        timeout_graceful_shutdown=SEND_SECONDS,
        # Out of file descriptors, asyncio logs one traceback for each place of the backlog, every second.
        backlog=BACKLOG,
    )
    try:
        Server(config, app, service).run(sockets=[bound])
    finally:
        service.worker.stop()


class Server(uvicorn.Server):
    """uvicorn that keeps its socket open while it drains, so that /health can say 503."""

    def __init__(self, config: uvicorn.Config, app: Edge, service: Service) -> None:
        super().__init__(config)
        self._app = app
        self._worker = service.worker
        self._hurry = False
        self._draining: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._loop = asyncio.get_running_loop()
        for bound in sockets or ():
            host, port = bound.getsockname()[:2]
            click.echo(f"listening on http://{f'[{host}]' if ':' in host else host}:{port}")

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # Not uvicorn's own: it would raise the signal again at the end, and the exit code would not be 0.
        if not self.started:
            self.should_exit = True
        elif self._app.draining:
            self._hurry = True
        else:
            self._app.draining = True
            self._loop.call_soon_threadsafe(self._begin_drain)

    def _begin_drain(self) -> None:
        self._draining = asyncio.ensure_future(self._drain())

    async def _drain(self) -> None:
        _logger.info("draining")
        last = time.monotonic() + DRAIN_SECONDS
        while not await asyncio.to_thread(self._worker.drain, DRAIN_STEP_SECONDS):
            if self._hurry or time.monotonic() > last:
                _logger.warning("requests still in flight are cut off")
                break
        # Ends what is left with an error, so that its clients hear of it before the sockets close.
        await asyncio.to_thread(self._worker.stop)
        self.should_exit = True
