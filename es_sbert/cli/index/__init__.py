"""`es-sbert index`: create, inspect and change indices with a vector field; one module a command."""

from __future__ import annotations

import cloup

from es_sbert.cli.index.adopt import adopt
from es_sbert.cli.index.calibrate import calibrate
from es_sbert.cli.index.change_type import change_type
from es_sbert.cli.index.create import create
from es_sbert.cli.index.estimate import estimate
from es_sbert.cli.index.migrate import migrate
from es_sbert.cli.index.recall import recall
from es_sbert.cli.index.repair import repair
from es_sbert.cli.index.show import show


@cloup.group()
def index() -> None:
    """Create, inspect and change indices with a vector field."""


for _command in (adopt, calibrate, change_type, create, estimate, migrate, recall, repair, show):
    index.add_command(_command)
