"""A Chromium without a window, driven by Playwright."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, sync_playwright

from tests.programs import program

_SWITCHES = (
    "--no-sandbox",  # root may not run it otherwise
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    # A browser of tests has no business on the network.
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@contextmanager
def chromium() -> Iterator[Browser]:
    """The system's own Chromium: Playwright's builds are never downloaded.

    Close it before other tests run: while it is open, this thread has a running event loop.
    """
    path = program("chromium", "chromium-browser", "google-chrome")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=_SWITCHES)
        try:
            yield browser
        finally:
            browser.close()
