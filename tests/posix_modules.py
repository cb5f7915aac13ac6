"""Modules of Python that only Unix-like systems have."""

POSIX_ONLY = frozenset({"fcntl", "grp", "posix", "pty", "pwd", "resource", "syslog", "termios", "tty"})
