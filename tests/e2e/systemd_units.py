"""Run units as systemd does, without root: commands, environment, credentials, folders, readiness and exit codes."""

from __future__ import annotations

import re
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
UNITS = ROOT / "examples/deploy/systemd"
# What the units and es-sbert.env name; below another root, a test needs no privileges.
_FOLDERS = ("/opt/es-sbert", "/etc/es-sbert", "/etc/systemd/system", "/var/cache", "/var/lib")
_TIMEOUT = 180


def substitutes(root: Path) -> dict[str, str]:
    """Folder of an installation → the one below `root`."""
    return {folder: f"{root}{folder}" for folder in _FOLDERS}


def replace_all(text: str, replaced: Mapping[str, str]) -> str:
    """Replace the keys of `replaced` by its values, in one pass."""
    return re.sub("|".join(map(re.escape, replaced)), lambda match: replaced[match[0]], text)


# What the extras `serve` and `cpu` do not install.
_LACKING = ("sentence_transformers", "torch", "transformers")
_MAIN = f"import sys; sys.modules.update(dict.fromkeys({_LACKING})); from es_sbert.cli.main import main; main()"


def write_program(path: Path) -> None:
    """Write an `es-sbert` that runs this checkout with this interpreter, in the place of the one that pip writes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {shlex.join([sys.executable, "-c", _MAIN])} "$@"\n')
    path.chmod(0o755)


def wait_for(condition: Callable[[], bool], what: Callable[[], str], timeout: float = _TIMEOUT) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, what()
        time.sleep(0.1)


class ServiceManager:
    """Starts and stops instances of the units in `root`/etc/systemd/system.

    Attributes:
        exit_codes: Unit → exit codes of the processes that were stopped.
        enabled: The units that were enabled.
    """

    def __init__(self, root: Path) -> None:
        self.exit_codes: dict[str, list[int]] = {}
        self.enabled: set[str] = set()
        self._root = root
        self._folder = root / "etc/systemd/system"
        self._run = root / "run"
        self._run.mkdir(parents=True, exist_ok=True)
        self._loaded: dict[str, str] = {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def log(self) -> str:
        """What all services have printed."""
        return "".join(f"{path.name}:\n{path.read_text()}" for path in sorted(self._run.glob("*.log")))

    def daemon_reload(self) -> None:
        self._loaded = {path.name: path.read_text() for path in self._folder.glob("*.service")}

    def systemctl(self, *arguments: str) -> None:
        """What `systemctl ARGUMENTS…` does; any that is not known here is an error."""
        command, *rest = arguments
        now = rest[:1] == ["--now"]
        units = rest[1:] if now else rest
        if command == "daemon-reload" and not rest:
            self.daemon_reload()
        elif command == "enable" and now:
            self.enabled.update(units)
            self._each(units, self.start)
        elif command == "disable" and now:
            self.enabled.difference_update(units)
            self._each(units, self.stop)
        elif command == "restart" and not now:
            self._each(units, self.stop)
            self._each(units, self.start)
        else:
            raise AssertionError(f"systemctl {shlex.join(arguments)} is not known here")

    def kill_all(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()

    def _each(self, units: list[str], act: Callable[[str], None]) -> None:
        assert units
        for unit in units:
            act(unit)

    def stop(self, unit: str) -> None:
        """End a unit by SIGTERM."""
        process = self._processes.pop(unit)
        assert process.poll() is None, f"{unit} has ended by itself\n{self.log()}"
        process.send_signal(signal.SIGTERM)
        self.exit_codes.setdefault(unit, []).append(process.wait(_TIMEOUT))

    def start(self, unit: str) -> None:
        """Start an instance such as `es-sbert-watch@docs`; return when it is ready, if the unit has `Type=notify`."""
        template, _, instance = unit.partition("@")
        text = self._loaded[f"{template}@.service"]
        credentials = self._run / "credentials" / unit
        specifiers = {"%i": instance, "%N": unit, "%d": str(credentials)}
        specifiers |= {
            f"%{letter}": f"{self._root}/var/{folder}"
            for letter, folder in (("C", "cache"), ("S", "lib"), ("L", "log"))
        }
        settings = [
            (name, replace_all(value, specifiers)) for name, value in re.findall(r"^(\w+)=(.*)$", text, re.MULTILINE)
        ]
        every = {name: [value for key, value in settings if key == name] for name, _ in settings}
        assert not re.search(r"%\w", "".join(value for _, value in settings)), "a specifier that is not known here"
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


def install_units(root: Path, environment: Mapping[str, str], keys: Mapping[str, str]) -> ServiceManager:
    """Install the units below `root` by hand, with an `es-sbert.env` of these variables and these key files."""
    replaced = substitutes(root)
    for folder in _FOLDERS:
        Path(replaced[folder]).mkdir(parents=True)
    for unit in UNITS.glob("*.service"):
        (root / "etc/systemd/system" / unit.name).write_text(replace_all(unit.read_text(), replaced))
    lines = "".join(f"{name}={value}\n" for name, value in environment.items())
    (root / "etc/es-sbert/es-sbert.env").write_text(lines)
    for name, key in keys.items():
        (root / "etc/es-sbert" / f"{name}.key").write_text(key)
    write_program(root / "opt/es-sbert/bin/es-sbert")
    manager = ServiceManager(root)
    manager.daemon_reload()
    return manager


def environment_file() -> dict[str, str]:
    """The variables of `examples/deploy/systemd/es-sbert.env`."""
    lines = (UNITS / "es-sbert.env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
