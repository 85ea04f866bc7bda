"""What an order says reaches the sandbox, also through its file."""

from __future__ import annotations

from dataclasses import asdict, fields
from pathlib import Path

from snapshot.model import SandboxSpec
from spawner.supervisor.context import sandbox_spec
from spawner.supervisor.order import read_order, write_order
from tests.builders.supervisor import Stage
from tests.fakes.machine import WorkingMachine

DIGEST = "sha256:" + "a" * 64


async def test_what_an_order_says_reaches_the_sandbox(tmp_path: Path) -> None:
    stage = Stage(tmp_path, WorkingMachine())
    await stage.submit()
    order = await stage.make_order(image=DIGEST, layer=("/tmp", "/opt"), devices=("/dev/x",))
    write_order(order, tmp_path / "order.json")
    spec = sandbox_spec(read_order(tmp_path / "order.json"), 4000)
    assert (spec.image, spec.layer, spec.network.host_port) == (DIGEST, ("/tmp", "/opt"), 4000)
    same = {it.name for it in fields(SandboxSpec)} & asdict(order).keys() - {"directory"}
    assert {"image", "layer", "devices", "binds", "identity", "folder"} <= same
    assert all(getattr(spec, name) == getattr(order, name) for name in same)
