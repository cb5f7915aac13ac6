"""Rich's progress bar, kept on one line of the terminal."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.progress import Progress

# The terminal echoes each Ctrl-C as "^C" at the end of the bar. If the bar filled the line, the echo would wrap to the
# next line, and rich would leave a stale copy of the bar above it.
_ECHO_COLUMNS = 8


class SingleLineProgress(Progress):
    """A `rich.progress.Progress` that leaves a few columns of the terminal free."""

    def get_renderables(self) -> Iterable[RenderableType]:
        """The bar."""
        for renderable in super().get_renderables():
            yield _NarrowedRenderable(renderable)


@dataclass(frozen=True)
class _NarrowedRenderable:
    renderable: RenderableType

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from console.render(self.renderable, options.update_width(max(1, options.max_width - _ECHO_COLUMNS)))
