"""Tell systemd when the gateway is ready and when it ends (`Type=notify`, sd_notify(3))."""

from __future__ import annotations

import logging
import os
import socket
import sys

logger = logging.getLogger(__name__)


def notify_service_manager(*assignments: str) -> None:
    """Send a notification to systemd; without it (no `NOTIFY_SOCKET`), do nothing.

    A notification that cannot be sent is logged: systemd then ends the service by its own timeout.

    Args:
        assignments: `READY=1`, `STOPPING=1`, `STATUS=…`.
    """
    address = os.environ.get("NOTIFY_SOCKET")
    if not address or sys.platform == "win32":  # Windows has neither systemd nor such sockets
        return
    if address.startswith("@"):  # in Linux's abstract namespace
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.sendto("\n".join(assignments).encode(), address)
    except OSError as error:
        logger.warning(
            "cannot send %s to systemd: %s. Use Type=exec if notifications are not possible.", assignments[0], error
        )
