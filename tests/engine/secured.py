"""Real servers with TLS and users, which `es-sbert engine up` does not start: Elasticsearch, on 8.19 with API keys."""

from __future__ import annotations

import json
import os
import shutil
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from es_sbert.engines.local import server_process
from es_sbert.engines.local.engine_builds import EngineBuild
from es_sbert.engines.local.engine_home import EngineHome
from es_sbert.engines.local.server_process import find_jdk, prepare_work_folder, server_account, server_environment
from tests.conftest import build_of, free_port
from tests.engine_builds import BUILDS, install_build
from tests.memory import make_folder_in_memory
from tests.shared import shared

PASSWORD = "correct-horse"
SECURITY = {
    "xpack.security.enabled": "true",
    "xpack.security.autoconfiguration.enabled": "false",
    "xpack.security.http.ssl.enabled": "true",
    "xpack.security.http.ssl.certificate": "node.crt",
    "xpack.security.http.ssl.key": "node.key",
}
# Users and roles from files: the API's own index needs analysers that the integration-test build lacks.
NARROW_ROLE = """
narrow:
  cluster: [monitor]
  indices:
    - names: [mine, mine-signed-in]
      privileges: [read, create_index, view_index_metadata]
"""


@dataclass(frozen=True)
class SecuredServer:
    """A server with TLS and users; the password of all users is `PASSWORD`.

    Attributes:
        ca_certs: The certificate to trust.
        admin: The user who may do all.
    """

    port: int
    ca_certs: Path
    admin: ClassVar[str]

    @property
    def url(self) -> str:
        return f"https://localhost:{self.port}"

    def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """A request of `admin`, past the code that is tested."""
        authorization = "Basic " + b64encode(f"{self.admin}:{PASSWORD}".encode()).decode()
        headers = {"authorization": authorization, "content-type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}{path}", method=method, headers=headers, data=data)
        context = ssl.create_default_context(cafile=self.ca_certs)
        with urllib.request.urlopen(request, context=context, timeout=120) as response:
            answer: dict[str, Any] = json.load(response)
        return answer


class Secured(SecuredServer):
    """Elasticsearch, also with the user `anna`, who may create and read `mine` and `mine-signed-in`."""

    admin = "elastic"

    def api_key(self, *, cluster: Sequence[str] = (), index: Mapping[str, Sequence[str]] | None = None) -> str:
        """An API key that may do this and nothing else, encoded as users get it (8.19 alone).

        Args:
            cluster: Cluster privileges.
            index: Index pattern → privileges.
        """
        indices = [{"names": [pattern], "privileges": list(names)} for pattern, names in (index or {}).items() if names]
        role = {"cluster": list(cluster), "indices": indices}
        # Otherwise the answer waits for the next refresh, for up to a second.
        made = self.ask("POST", "/_security/api_key?refresh=true", {"name": "key", "role_descriptors": {"role": role}})
        return str(made["encoded"])


@contextmanager
def secured_elasticsearch(folder: Path, name: str = "es9") -> Iterator[Secured]:
    """The server of this test run, started where none runs yet; the last to use it removes all of it.

    Args:
        folder: Of the run: for the certificate that clients trust, and the note about the server.
        name: `es9` or `es8`; API keys need modules that only the latter has.
    """
    with shared(folder / f"secured-{name}.json", lambda: _start(folder, name), stop_server) as server:
        yield Secured(server["port"], Path(server["ca_certs"]))


def _start(folder: Path, name: str) -> dict[str, Any]:
    build = replace(BUILDS[build_of(name)], settings=SECURITY)

    def add_users(home: Path, conf: Path, run_tool: Callable[..., None]) -> None:
        run_tool(home / "bin/elasticsearch-keystore", "add", "-f", "-x", "bootstrap.password", given=PASSWORD)
        (conf / "roles.yml").write_text(NARROW_ROLE)
        run_tool(home / "bin/elasticsearch-users", "useradd", "anna", "-p", PASSWORD, "-r", "narrow")

    return start_server(build, folder / f"secured-{name}.pem", add_users, Secured)


def start_server(
    build: EngineBuild,
    ca_certs: Path,
    configure: Callable[[Path, Path, Callable[..., None]], None],
    kind: type[SecuredServer],
) -> dict[str, Any]:
    """Start a server with a certificate, whose configuration names `node.crt` and `node.key`.

    Args:
        ca_certs: Where to write the certificate that clients trust.
        configure: Called with the server's home, its folder of configuration and a function that runs one of its tools.
        kind: The class of the server.

    Returns:
        The server, described so that any process can stop it.
    """
    account = server_account()
    layout = EngineHome.from_environment(os.environ, root=os.geteuid() == 0)
    layout.create(server_account())
    home = install_build(build)
    jdk = find_jdk(build.jdks, os.environ, account)
    port = free_port()
    work = layout.work("secured", port)
    folders = [str(work)]
    if (data := make_folder_in_memory()) is not None:
        folders.append(str(data))
        build = replace(build, settings={**build.settings, "path.data": str(data)})
    described: dict[str, Any] = {"port": port, "ca_certs": str(ca_certs), "folders": folders}
    try:
        console = prepare_work_folder(build, home, port, work, account)
        environment = server_environment(build, jdk.home, "512m", work, os.environ)

        def run_tool(*command: str | Path, given: str = "") -> None:
            subprocess.run(
                command,
                env=environment,
                input=given,
                capture_output=True,
                text=True,
                check=True,
                cwd=work,
                user=account.pw_uid if account else None,
                group=account.pw_gid if account else None,
                extra_groups=[] if account else None,
            )

        certificate, key = _certificate()
        for path, content in (
            (ca_certs, certificate),
            (work / "conf/node.crt", certificate),
            (work / "conf/node.key", key),
        ):
            path.write_bytes(content)
        configure(home, work / "conf", run_tool)
        pid = server_process.start_process(
            [str(home / "bin" / build.product.lower())],
            folder=home,
            environment=environment,
            console=console,
            account=account,
        )
        described |= {"pid": pid, "started": server_process.process_identity(pid) or "ended"}
        _wait(kind(port, ca_certs), pid, console)
        return described
    except BaseException:
        stop_server(described)
        raise


def _certificate() -> tuple[bytes, bytes]:
    """A certificate for `localhost` that vouches for itself, and its key, as PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=2))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    plain = serialization.NoEncryption()
    pem = serialization.Encoding.PEM
    return made.public_bytes(pem), key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain)


def stop_server(described: dict[str, Any]) -> None:
    if "pid" in described:
        server_process.stop_process(described["pid"], described["started"], grace=30.0)
    for folder in filter(os.path.exists, described["folders"]):
        shutil.rmtree(folder)


def _wait(server: SecuredServer, pid: int, console: Path) -> None:
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline and server_process.process_identity(pid) is not None:
        try:
            server.ask("GET", "/_cluster/health")
            return
        except urllib.error.HTTPError as error:
            error.close()  # the users are not set up yet
        except OSError:
            pass  # not listening yet
        time.sleep(0.5)
    raise AssertionError(f"the server did not start:\n{console.read_text()[-3000:]}")
