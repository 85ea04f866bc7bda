"""How records become JSON and come back: each is declared once, in the model."""

from __future__ import annotations

from typing import Final

from pydantic import TypeAdapter

from scheduler_bridge.model.nodes import NodeRecord
from scheduler_bridge.model.teams import ChangeSet
from scheduler_bridge.model.workload import Pause, Workload
from scheduler_bridge.store.base import LeaseRecord

WORKLOAD: Final = TypeAdapter(Workload)
LEASE: Final = TypeAdapter(LeaseRecord)
PAUSE: Final = TypeAdapter(Pause)
CHANGE_SET: Final = TypeAdapter(ChangeSet)
NODE: Final = TypeAdapter(NodeRecord)
