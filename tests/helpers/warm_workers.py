"""Worker processes without import time: forks of a process that has already imported everything.

A new worker spends ten seconds of processor time on imports and one on a smoke cell. Here the launcher starts a small
client instead, which passes its stdin, stdout and stderr to the warm process; that process forks, and the fork is the
worker, with the same `serve_request`, real pipes and real signals. A slow test runs the real command.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

CLIENT = """\
import socket, sys
with socket.socket(socket.AF_UNIX) as channel:
    channel.connect(sys.argv[1])
    socket.send_fds(channel, [b"x"], [0, 1, 2])
    answer = channel.recv(1)
sys.exit(answer[0] if answer else 137)
"""


@contextlib.contextmanager
def warm_workers(folder: Path) -> Iterator[tuple[str, ...]]:
    """Yield the command that starts a worker."""
    client, address = folder / "client.py", folder / "s"
    client.write_text(CLIENT)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(address))
        server.listen(64)
        pid = os.fork()
        if pid == 0:
            serve(server)
        try:
            yield (sys.executable, "-S", "-E", str(client), str(address))
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def serve(server: socket.socket) -> None:
    """Fork a worker for every connection, forever."""
    import jaxtyping

    jaxtyping.config.update("jaxtyping_disable", True)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        channel, _ = server.accept()
        if os.fork() == 0:
            work(channel)
        channel.close()


def work(channel: socket.socket) -> None:
    """Run the worker of one cell."""
    code = 99
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        _, received, _, _ = socket.recv_fds(channel, 1, 3)
        for number, descriptor in enumerate(received):
            os.dup2(descriptor, number)
            os.close(descriptor)
        sys.stdin, sys.stderr = os.fdopen(0), os.fdopen(2, "w", buffering=1)
        sys.__stdout__ = os.fdopen(1, "w")  # type: ignore[misc]

        from quatsphere.study.worker import serve_request

        code = serve_request()
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError):
            channel.send(bytes([code % 256]))
        os._exit(code)
