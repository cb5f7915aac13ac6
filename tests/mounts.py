"""Mount namespaces, which hide files from a process."""

from __future__ import annotations

import subprocess


def can_mount() -> bool:
    """Whether this process can create a mount namespace, as root on Linux can."""
    try:
        return subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode == 0
    except OSError:
        return False
