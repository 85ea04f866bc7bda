"""`hubernate snapshots` on a real store in a folder."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduler_bridge.model.phases import Phase
from scheduler_bridge.model.workload import SnapshotRef
from snapshot.repository import Repository
from tests.hub_config.cli_bench import Cli, running_service, state_at
from tests.hub_config.cli_store import keep, store_at


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cli]:
    with running_service() as service:
        cli = Cli(service, state_at(tmp_path / "state", service.port), monkeypatch)
        cli.as_root()
        yield cli


@pytest.fixture
def store(cli: Cli) -> Repository:
    return store_at(cli.state)


def test_before_set_up(cli: Cli) -> None:
    assert "site.json cannot be read" in cli.fails("snapshots", "list")


def test_only_the_administrator_sees_the_store(cli: Cli) -> None:
    cli.in_a_session()
    assert "for the administrator" in cli.fails("snapshots", "list")


def test_list_verify_and_rm(cli: Cli, store: Repository) -> None:
    assert cli.ok("snapshots", "list") == "No snapshots.\n"
    ada, bob = keep(store, "ada"), keep(store, "bob")
    shown = cli.ok("snapshots", "list")
    assert ada in shown
    assert bob in shown
    assert [s["snapshot"]["manifest"] for s in cli.json("snapshots", "list", "--user", "bob")] == [
        bob
    ]
    assert cli.ok("snapshots", "verify") == f"{ada}: good\n{bob}: good\n"
    assert cli.ok("snapshots", "rm", "s-ada") == f"removed {ada}\n"
    assert cli.ok("snapshots", "verify", bob) == f"{bob}: good\n"
    assert "there is no snapshot s-ada" in cli.fails("snapshots", "rm", "s-ada")


def test_a_part_that_several_keys_have_is_refused(cli: Cli, store: Repository) -> None:
    keep(store, "ada"), keep(store, "ada", 2)
    assert "can mean 2 snapshots" in cli.fails("snapshots", "rm", "s-ada")
    assert len(store.list()) == 2


def test_damage_is_found_and_told_by_the_exit_code(cli: Cli, store: Repository) -> None:
    _, bob = keep(store, "ada"), keep(store, "bob")
    (pack,) = (cli.state.root / "objects" / "packs" / "ada").glob("**/*")
    damaged = bytearray(pack.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    pack.chmod(0o600)
    pack.write_bytes(damaged)
    result = cli("snapshots", "verify")
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert "is damaged" in lines[0]
    assert lines[0].endswith("(snapshot of ada)")
    told = json.loads(cli("snapshots", "verify", "--json").stdout)
    assert [(each["owner"], bool(each["error"])) for each in told] == [
        ("ada", True),
        ("bob", False),
    ]
    assert lines[1] == f"{bob}: good"


def test_the_snapshot_that_a_session_needs_is_not_removed_by_accident(
    cli: Cli, store: Repository
) -> None:
    key = keep(store, "ada")
    session = cli.service.run(cli.service.session())
    cli.service.move(session, Phase.SUSPENDING)
    cli.service.move(session, Phase.SUSPENDED, snapshot=SnapshotRef(key, 1, 1))
    assert "ada (suspended)" in cli.ok("snapshots", "list")
    said = cli.fails("snapshots", "rm", key)
    assert "ada (suspended) is resumed from" in said
    assert "--force" in said
    assert len(store.list()) == 1
    assert (
        cli.json("snapshots", "rm", key, "--force")["removed"]["reason"] == "removed with --force"
    )
    assert store.list() == ()


def test_nothing_is_removed_while_it_is_not_known_who_needs_it(cli: Cli, store: Repository) -> None:
    key = keep(store, "ada")
    cli.state.ports_file.write_text('{"public": 5}')
    assert "not known whether a session needs" in cli.fails("snapshots", "rm", key)
    assert len(store.list()) == 1
