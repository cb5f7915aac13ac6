"""A real OpenSearch 2.19 with the security plugin: TLS, users and roles."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from es_sbert.engines.local.engine_builds import Piece
from es_sbert.io.package_downloads import Artifact
from tests.engine.secured import SecuredServer, start_server, stop_server
from tests.engine_builds import BUILDS
from tests.shared import shared

# Of `PASSWORD`, with the fewest rounds: the plugin verifies passwords anew after each change of a role.
_HASH = "$2b$04$abcdefghijklmnopqrstuuPoaPXzWjiVz4HaNq2LJXksWbO79E.S6"
# The last version of which the plugin is published on Maven Central.
_PLUGIN = Artifact("org.opensearch.plugin", "opensearch-security", "2.19.1.0", 44)
_FOLDER = "plugins/opensearch-security/"
_TLS = {"pemcert_filepath": "node.crt", "pemkey_filepath": "node.key", "pemtrustedcas_filepath": "node.crt"}
_SETTINGS = {
    **{f"plugins.security.ssl.{layer}.{name}": file for layer in ("http", "transport") for name, file in _TLS.items()},
    "plugins.security.ssl.http.enabled": "true",
    "plugins.security.ssl.transport.enforce_hostname_verification": "false",
    "plugins.security.allow_default_init_securityindex": "true",
    "plugins.security.audit.type": "noop",
    "plugins.security.restapi.roles_enabled": "all_access",
}
# In place of the plugin's files, whose mapping gives every user the role `own_index` with permissions of the cluster.
_FILES = {
    "internal_users.yml": f"""
_meta: {{type: internalusers, config_version: 2}}
admin: {{hash: "{_HASH}", backend_roles: [admin]}}
""",
    "roles_mapping.yml": """
_meta: {type: rolesmapping, config_version: 2}
all_access: {backend_roles: [admin]}
""",
}


class SecuredOpenSearch(SecuredServer):
    """OpenSearch, whose roles a test can change."""

    admin = "admin"

    def set_user(
        self, name: str, cluster: Sequence[str], index: Mapping[str, Sequence[str]], **limits: str | Sequence[str]
    ) -> None:
        """Create a user, or change what the user may do.

        Args:
            cluster: Permissions or action groups of the cluster.
            index: Index pattern → permissions or action groups.
            limits: `dls`, `fls` or `masked_fields` of all patterns.
        """
        indices = [
            {"index_patterns": [pattern], "allowed_actions": list(actions), **limits}
            for pattern, actions in index.items()
        ]
        role = {"cluster_permissions": list(cluster), "index_permissions": indices}
        self.ask("PUT", f"/_plugins/_security/api/roles/{name}", role)
        user = {"hash": _HASH, "opendistro_security_roles": [name]}
        self.ask("PUT", f"/_plugins/_security/api/internalusers/{name}", user)


@contextmanager
def secured_opensearch(folder: Path) -> Iterator[SecuredOpenSearch]:
    """The server of this test run, started where none runs yet; the last to use it removes all of it.

    Args:
        folder: Of the run: for the certificate that clients trust, and the note about the server.
    """
    with shared(folder / "secured-opensearch2.json", lambda: _start(folder), stop_server) as server:
        yield SecuredOpenSearch(server["port"], Path(server["ca_certs"]))


def _start(folder: Path) -> dict[str, Any]:
    standard = BUILDS["opensearch2"]
    build = replace(
        standard,
        name="opensearch2-security",
        pieces=(*standard.pieces, Piece(_PLUGIN, (("", _FOLDER),))),
        settings=_SETTINGS,
    )

    def add_users(home: Path, conf: Path, run_tool: Callable[..., None]) -> None:
        (conf / "opensearch-security").mkdir(exist_ok=True)
        for file in (home / _FOLDER / "config").glob("*.yml"):
            (conf / "opensearch-security" / file.name).write_text(_FILES.get(file.name) or file.read_text())

    return start_server(build, folder / "secured-opensearch2.pem", add_users, SecuredOpenSearch)
