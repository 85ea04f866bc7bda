"""What JupyterLab's page is told in a session, whatever the environment it is installed in says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

HOOK: Final = "page_config_hook"
UNWANTED: Final = ("@jupyterlab/apputils-extension:announcements",)
"""Asks everybody at their first visit whether it may fetch news, although sessions fetch none."""

PageConfig = dict[str, Any]


def quieten(settings: dict[str, Any]) -> None:
    """Have JupyterLab load none of `UNWANTED`; a hook that is there already goes first."""
    earlier: Callable[[Any, PageConfig], PageConfig] | None = settings.get(HOOK)

    def hook(handler: Any, page: PageConfig) -> PageConfig:
        page = earlier(handler, page) if earlier is not None else page
        disabled = list(page.get("disabledExtensions") or ())
        page["disabledExtensions"] = [*disabled, *(n for n in UNWANTED if n not in disabled)]
        return page

    settings[HOOK] = hook
