"""Run units as systemd does, without root: commands, environment, credentials, folders, readiness and exit codes."""

from __future__ import annotations

import re
import select
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
UNITS = ROOT / "examples/deploy/systemd"
_TIMEOUT = 180
# What the extras `serve` and `cpu` do not install.
_LACKING = ("sentence_transformers", "torch", "transformers")
_MAIN = f"import sys; sys.modules.update(dict.fromkeys({_LACKING})); from es_sbert.cli.main import main; main()"


def replace_all(text: str, replaced: Mapping[str, str]) -> str:
    """Replace the keys of `replaced` by its values, in one pass."""
    return re.sub("|".join(map(re.escape, replaced)), lambda match: replaced[match[0]], text)


def wait_for(condition: Callable[[], bool], what: Callable[[], str]) -> None:
    deadline = time.monotonic() + _TIMEOUT
    while not condition():
        assert time.monotonic() < deadline, what()
        time.sleep(0.1)


class ServiceManager:
    """Starts and stops instances of the units, whose folders are below `root`: a test needs no privileges.

    The environment file has these variables, and there is a file for each key.
    """

    def __init__(self, root: Path, environment: Mapping[str, str], keys: Mapping[str, str]) -> None:
        self._root = root
        self._run = root / "run"
        for folder in ("run", "opt/es-sbert/bin", "etc/es-sbert", "var/cache", "var/lib", "var/log"):
            (root / folder).mkdir(parents=True)
        program = root / "opt/es-sbert/bin/es-sbert"
        program.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {shlex.join([sys.executable, "-c", _MAIN])} "$@"\n')
        program.chmod(0o755)
        lines = "".join(f"{name}={value}\n" for name, value in environment.items())
        (root / "etc/es-sbert/es-sbert.env").write_text(lines)
        for name, key in keys.items():
            (root / f"etc/es-sbert/{name}.key").write_text(key)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def log(self) -> str:
        """What all services have printed."""
        return "".join(f"{path.name}:\n{path.read_text()}" for path in sorted(self._run.glob("*.log")))

    def kill_all(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()

    def stop(self, unit: str) -> int:
        """End a unit by SIGTERM; its exit code."""
        process = self._processes[unit]
        assert process.poll() is None, f"{unit} has ended by itself\n{self.log()}"
        process.terminate()
        return process.wait(_TIMEOUT)

    def start(self, unit: str) -> None:
        """Start an instance such as `es-sbert-watch@docs`; return when it is ready, if the unit has `Type=notify`."""
        template, _, instance = unit.partition("@")
        places = {folder: f"{self._root}{folder}" for folder in ("/opt/es-sbert", "/etc/es-sbert")}
        text = replace_all((UNITS / f"{template}@.service").read_text(), places)
        credentials = self._run / "credentials" / unit
        specifiers = {"%i": instance, "%N": unit, "%d": str(credentials)}
        specifiers |= {
            f"%{letter}": f"{self._root}/var/{folder}"
            for letter, folder in (("C", "cache"), ("S", "lib"), ("L", "log"))
        }
        every: dict[str, list[str]] = {}
        for name, value in re.findall(r"^(\w+)=(.*)$", text, re.MULTILINE):
            every.setdefault(name, []).append(replace_all(value, specifiers))
        for kind, folder in (
            ("CacheDirectory", "var/cache"),
            ("StateDirectory", "var/lib"),
            ("LogsDirectory", "var/log"),
        ):
            for name in every.get(kind, []):
                self._make_private_folder(self._root / folder, name)
        for pair in every["LoadCredential"]:
            name, _, path = pair.partition(":")
            credentials.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, credentials / name)
        # systemd's own environment, without that of a session.
        environment = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "HOME": "/"}
        environment |= dict(pair.split("=", 1) for pair in every["Environment"])
        for file in every["EnvironmentFile"]:
            environment |= self._read_environment_file(file)
        words = [word for part in every["ExecStart"][0].split() for word in self._expand(part, environment)]
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ready, (self._run / f"{unit}.log").open("ab") as log:
            if every["Type"] == ["notify"]:
                # A path in a temporary folder may be too long for such a socket.
                ready.bind(f"\0{self._run}/{unit}"[:100])
                environment["NOTIFY_SOCKET"] = "@" + ready.getsockname()[1:].decode()
            process = subprocess.Popen(
                words,
                cwd=every.get("WorkingDirectory", ["/"])[0],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
            self._processes[unit] = process
            if "NOTIFY_SOCKET" in environment:
                self._wait_until_ready(unit, process, ready)

    def _wait_until_ready(self, unit: str, process: subprocess.Popen[bytes], ready: socket.socket) -> None:
        deadline = time.monotonic() + _TIMEOUT
        while True:
            assert process.poll() is None, f"{unit} has ended\n{self.log()}"
            assert time.monotonic() < deadline, f"{unit} is not ready\n{self.log()}"
            if select.select([ready], [], [], 0.1)[0] and b"READY=1" in ready.recv(4096).split(b"\n"):
                return

    @staticmethod
    def _make_private_folder(parent: Path, name: str) -> None:
        """As for a dynamic user: the folder is below `private`, with a link to it."""
        (parent / "private" / name).mkdir(parents=True, exist_ok=True)
        if not (parent / name).is_symlink():
            (parent / name).symlink_to(Path("private") / name)

    @staticmethod
    def _read_environment_file(file: str) -> dict[str, str]:
        path = Path(file.removeprefix("-"))
        if file.startswith("-") and not path.exists():
            return {}
        lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
        return dict(line.split("=", 1) for line in lines)

    @staticmethod
    def _expand(word: str, environment: Mapping[str, str]) -> list[str]:
        """`$NAME` as a word becomes any number of words, `${NAME}` a part of one."""
        if re.fullmatch(r"\$\w+", word):
            return environment[word[1:]].split()
        return [re.sub(r"\$\{(\w+)\}", lambda match: environment[match[1]], word)]


def environment_file() -> dict[str, str]:
    """The variables of `examples/deploy/systemd/es-sbert.env`."""
    lines = (UNITS / "es-sbert.env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
