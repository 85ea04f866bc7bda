"""Keys are replaced and rules applied while real sessions are away, and they come back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hub_config.demo.browserless import Researcher
from hub_config.demo.stage import Stage
from tests.e2e.scenes import end, open_with_a_secret, read_secret, resume, shown, suspend

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.criu,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(180),
]

STRICT = """
version: 1
rules:
  - name: strict
    keep_last: 0
    keep_suspended_for: 30d
"""


async def test_a_session_comes_back_after_every_key_was_replaced(
    two_gpus: Stage, alice: Researcher
) -> None:
    kernel_id, word = await open_with_a_secret(alice, "cpu")
    await suspend(alice)
    keys = two_gpus.state / "keys"
    before = (keys / "kek.key").read_bytes()
    assert (await two_gpus.hubernate_json("keys", "rotate", "--json"))["rewrapped"] >= 1
    await two_gpus.hubernate("keys", "rotate", "--user", "alice")
    assert (keys / "kek.key").read_bytes() != before
    assert [path.name for path in keys.glob("*.key")] == ["kek.key"]
    (verified,) = await two_gpus.hubernate_json("snapshots", "verify", "--user", "alice", "--json")
    assert (verified["error"], verified["used_by"]) == ("", "alice (suspended)")
    await resume(alice)
    assert await read_secret(alice, kernel_id) == word
    await suspend(alice)
    await resume(alice)
    assert await read_secret(alice, kernel_id) == word
    await end(alice)


async def test_a_backup_is_worth_something(
    two_gpus: Stage, alice: Researcher, folder: Path
) -> None:
    kernel_id, word = await open_with_a_secret(alice, "cpu")
    await suspend(alice)
    (folder / "passphrase").write_text("five words and one more")
    how = (str(folder / "backup"), "--passphrase-file", str(folder / "passphrase"))
    await two_gpus.hubernate("keys", "export", *how)
    for path in (two_gpus.state / "keys").iterdir():
        path.unlink()
    await two_gpus.hubernate("keys", "import", *how)
    await resume(alice)
    assert await read_secret(alice, kernel_id) == word
    await end(alice)


async def test_rules_show_a_date_and_take_what_was_replaced(
    two_gpus: Stage, bob: Researcher
) -> None:
    kernel_id, word = await open_with_a_secret(bob, "cpu")
    for _ in range(2):
        await suspend(bob)
        await resume(bob)
    await suspend(bob)
    policy = two_gpus.state / "config" / "retention.yaml"
    shipped = policy.read_text()
    policy.write_text(STRICT)
    try:
        report = await two_gpus.hubernate_json("snapshots", "gc", "--json")
    finally:
        policy.write_text(shipped)
    assert {removal["rule"] for removal in report["removed"]} == {"strict"}
    assert report["problem"] == ""
    kept = (await shown(bob))["kept_until"]
    assert kept.startswith("Kept until 2")
    assert "suspended for 30 days; rule strict" in kept
    lines = json.loads(await two_gpus.hubernate("snapshots", "log", "--user", "bob", "--json"))
    assert [line["what"] for line in lines] == [r["manifest"] for r in report["removed"]]
    listed = await two_gpus.hubernate_json("snapshots", "list", "--user", "bob", "--json")
    assert [each["used_by"][:16] for each in listed] == ["bob (suspended u"]
    await resume(bob)
    assert await read_secret(bob, kernel_id) == word
    assert (await shown(bob))["kept_until"] == ""
    await end(bob)
