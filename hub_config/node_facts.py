"""What this machine is, for the scheduler: `python -m hub_config.node_facts` prints it as JSON."""

from __future__ import annotations

import asyncio
import json

from hub_config.paths import state_folder
from snapshot import host_facts
from snapshot.instructions import NOT_INSTRUCTIONS
from snapshot.model import Tools


def node_facts(tools: Tools) -> dict[str, str]:
    """The machine in the words of `snapshot.compat`, for sandboxes that use its own files.

    The scheduler compares sets and does not know which processor flags programs can depend on. All
    that they cannot depend on counts as present.
    """
    facts = host_facts.machine() | {"gpu_driver": host_facts.driver(), "image": ""}
    if "cpu_flags" in facts:
        flags = NOT_INSTRUCTIONS.union(facts["cpu_flags"].split())
        facts["cpu_flags"] = " ".join(sorted(flags))
    if version := asyncio.run(host_facts.criu_version(tools)):
        facts["criu"] = version
    return facts


if __name__ == "__main__":
    print(json.dumps(node_facts(state_folder().tools())))
