"""What JupyterLab's page is told in a session, whatever the environment it is installed in says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

LABEXTENSIONS: Final = Path(__file__).parent / "labextensions"
"""Our own parts of JupyterLab. They come with this package: no environment has to install them."""

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


def offer(extension_manager: Any) -> None:
    """Have JupyterLab load what lies in `LABEXTENSIONS`. For the time before its routes are made."""
    for point in extension_manager.extension_points.values():
        found = getattr(point.app, "extra_labextensions_path", None)
        if found is not None and str(LABEXTENSIONS) not in found:
            point.app.extra_labextensions_path = [*found, str(LABEXTENSIONS)]
