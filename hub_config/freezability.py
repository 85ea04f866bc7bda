"""Whether sessions of this machine can be suspended, in one sentence if not."""

from __future__ import annotations

import os
from pathlib import Path

from hub_config.paths import StateFolder
from hub_config.setup.criu import criu_complaint
from hub_config.setup.machine import read_facts


def why_not_freezable(folder: StateFolder) -> str:
    """Empty when suspending works here. Asks the kernel and CRIU themselves (about 0.1 s)."""
    facts = read_facts(folder.root)
    if not facts.is_root:
        return "Hubernate does not run as root."
    if facts.namespaces_refused:
        return f"The kernel refuses sandboxes their namespaces ({facts.namespaces_refused})."
    if facts.missing_capabilities:
        return f"Root lacks {', '.join(facts.missing_capabilities)} here."
    criu = folder.tools().criu
    if not os.access(criu[0], os.X_OK) or not Path(criu[-1]).exists():
        return "CRIU is not installed; `make up` brings it."
    complaint = criu_complaint(criu)
    return f"CRIU does not work on this machine: {complaint}" if complaint else ""
