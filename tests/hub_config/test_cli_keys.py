"""`hubernate keys` on a real store in a folder."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from hub_config import audit
from hub_config.cli import app
from hub_config.key_record import key_finding, last_export
from hub_config.setup.machine import Level
from scheduler_bridge.model.phases import Phase
from scheduler_bridge.model.workload import SnapshotRef
from snapshot.errors import SnapshotError
from snapshot.repository import Repository, open_repository
from spawner.site import read_site
from tests.hub_config.cli_bench import Cli, running_service, state_at
from tests.hub_config.cli_store import keep, store_at

PASSPHRASE = "correct horse battery staple"


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cli]:
    with running_service() as service:
        cli = Cli(service, state_at(tmp_path / "state", service.port), monkeypatch)
        cli.as_root()
        yield cli


@pytest.fixture
def store(cli: Cli) -> Repository:
    return store_at(cli.state)


@pytest.fixture
def passphrase(tmp_path: Path) -> str:
    path = tmp_path / "passphrase"
    path.write_text(PASSPHRASE + "\n")
    return str(path)


def reopened(cli: Cli) -> Repository:
    """As another process would."""
    return open_repository(read_site(cli.state.site_file).store)


def test_rotate_keeps_snapshots_readable_and_asks_for_a_new_backup(
    cli: Cli, store: Repository, tmp_path: Path, passphrase: str
) -> None:
    key = keep(store, "ada")
    cli.ok("keys", "export", str(tmp_path / "backup"), "--passphrase-file", passphrase)
    (tmp_path / "backup").unlink()
    assert key_finding(cli.state.keys).level is Level.OK
    said = cli.ok("keys", "rotate")
    assert "1 user key(s) were wrapped anew" in said
    assert "keys export" in said
    reopened(cli).open(key).verify()
    finding = key_finding(cli.state.keys)
    assert finding.level is Level.WARN
    assert "before the rotation" in finding.text
    assert cli.json("keys", "rotate")["rewrapped"] == 1


def test_one_user_gets_a_new_key(cli: Cli, store: Repository) -> None:
    key, bobs = keep(store, "ada"), keep(store, "bob")
    old = store.keys.current("ada").id
    said = cli.ok("keys", "rotate", "--user", "ada")
    assert "ada has a new key" in said
    assert reopened(cli).keys.current("ada").id != old
    for each in (key, bobs):
        reopened(cli).open(each).verify()
    assert cli.json("keys", "rotate", "--user", "bob") == {"user": "bob", "resealed": 0}
    assert "no key of eve" in cli.fails("keys", "rotate", "--user", "eve")
    cli.ok("snapshots", "gc")
    reopened(cli).open(key).verify()


def test_a_record_that_cannot_be_rotated_is_named(cli: Cli, store: Repository) -> None:
    keep(store, "ada")
    (record,) = (cli.state.root / "objects" / "keys" / "ada").iterdir()
    record.write_bytes(b"damaged")
    result = cli("keys", "rotate")
    assert result.exit_code == 1
    assert "not wrapped anew: ada: " in result.stderr


def test_what_was_exported_can_be_restored_after_the_disk_was_lost(
    cli: Cli, store: Repository, tmp_path: Path, passphrase: str
) -> None:
    key = keep(store, "ada")
    backup = tmp_path / "backup"
    said = cli.ok("keys", "export", str(backup), "--passphrase-file", passphrase)
    assert "same disk" in said
    assert backup.stat().st_mode & 0o777 == 0o600
    for path in cli.state.keys.iterdir():
        path.unlink()
    with pytest.raises(SnapshotError, match="keys import"):
        reopened(cli).open(key)
    said = cli.ok("keys", "import", str(backup), "--passphrase-file", passphrase)
    assert "is the key again" in said
    reopened(cli).open(key).verify()
    said = cli.ok("keys", "import", str(backup), "--passphrase-file", passphrase)
    assert "here already" in said


def test_keys_come_back_beside_a_new_one_and_become_one_again(
    cli: Cli, store: Repository, tmp_path: Path, passphrase: str
) -> None:
    key = keep(store, "ada")
    backup = tmp_path / "backup"
    cli.ok("keys", "export", str(backup), "--passphrase-file", passphrase)
    (cli.state.keys / "kek.key").unlink()
    bobs = keep(reopened(cli), "bob")  # a new key was made
    said = cli.ok("keys", "import", str(backup), "--passphrase-file", passphrase)
    assert "beside the key that is in use" in said
    cli.ok("keys", "rotate")
    assert [path.name for path in cli.state.keys.glob("*.key")] == ["kek.key"]
    for each in (key, bobs):
        reopened(cli).open(each).verify()


def test_export_asks_twice_and_writes_to_a_pipe(cli: Cli, store: Repository) -> None:
    keep(store, "ada")
    typed = f"{PASSPHRASE}\n{PASSPHRASE}\n"
    result = cli.runner.invoke(app, ["keys", "export", "-"], input=typed)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["format"] == "hubernate key backup"
    assert PASSPHRASE not in result.output
    exported = last_export(cli.state.keys)
    assert exported is not None
    assert (exported.path, exported.same_disk) == ("", False)
    assert key_finding(cli.state.keys).level is Level.OK


def test_an_export_never_overwrites_and_needs_a_good_passphrase(
    cli: Cli, store: Repository, tmp_path: Path, passphrase: str
) -> None:
    taken = tmp_path / "taken"
    short = tmp_path / "short"
    short.write_text("secret")
    arguments = ("keys", "export", str(taken), "--passphrase-file")
    assert "no key-encryption key yet" in cli.fails(*arguments, passphrase)
    keep(store, "ada")
    assert "Use 12 or more" in cli.fails(*arguments, str(short))
    assert "no passphrase in" in cli.fails(*arguments, str(tmp_path / "nothing"))
    taken.write_text("other")
    assert "File exists" in cli.fails(*arguments, passphrase)
    assert taken.read_text() == "other"
    assert last_export(cli.state.keys) is None


def test_a_wrong_passphrase_brings_nothing_back(
    cli: Cli, store: Repository, tmp_path: Path, passphrase: str
) -> None:
    keep(store, "ada")
    backup, other = tmp_path / "backup", tmp_path / "other"
    cli.ok("keys", "export", str(backup), "--passphrase-file", passphrase)
    other.write_text("not the right one at all")
    (cli.state.keys / "kek.key").unlink()
    assert "passphrase is wrong" in cli.fails(
        "keys", "import", str(backup), "--passphrase-file", str(other)
    )
    assert "cannot be read" in cli.fails("keys", "import", str(tmp_path / "nothing"))
    assert not list(cli.state.keys.glob("*.key"))


def suspended(cli: Cli, store: Repository, user: str) -> tuple[str, str]:
    """A suspended session of a user: its snapshot's key and its id."""
    session = cli.service.session(user)
    cli.service.run(session)
    key = keep(store, user)
    cli.service.move(session, Phase.SUSPENDING)
    cli.service.move(session, Phase.SUSPENDED, snapshot=SnapshotRef(key, 1, 1))
    return key, session.id


def test_destroying_a_users_keys_takes_everything_of_theirs_and_nothing_else(
    cli: Cli, store: Repository
) -> None:
    adas, session = suspended(cli, store, "ada")
    bobs, _ = suspended(cli, store, "bob")
    packs = sorted((cli.state.root / "objects" / "packs" / "ada").iterdir())

    assert "another name; nothing was destroyed" in _typed(cli, "bob\n", code=1)
    store.open(adas).verify()

    said = _typed(cli, "ada\n", code=0)
    assert "1 snapshot(s)" in said
    assert "ada" in said
    assert [stored.manifest for stored in store.list()] == [bobs]
    assert store.keys.ids("ada") == ()
    reopened(cli).open(bobs).verify()
    assert cli.service.do(lambda s: s.get(session)).phase is Phase.STOPPED
    assert sorted((cli.state.root / "objects" / "packs" / "ada").iterdir()) == packs  # of no use
    (line,) = audit.read(cli.state.gone_file)
    assert (line.owner, line.what, line.rule, line.actor) == ("ada", "keys/ada", "by hand", "root")
    assert "nothing is stored of ada" in cli.fails("keys", "destroy", "ada", "--yes")


def _typed(cli: Cli, text: str, *, code: int) -> str:
    result = cli.runner.invoke(app, ["keys", "destroy", "ada"], input=text)
    assert result.exit_code == code, result.output
    return result.output


def test_keys_are_not_destroyed_while_memory_is_on_the_way(cli: Cli, store: Repository) -> None:
    keep(store, "ada")
    session = cli.service.session("ada")
    cli.service.run(session)
    cli.service.move(session, Phase.SUSPENDING)
    assert "ada is suspending" in cli.fails("keys", "destroy", "ada", "--yes")
    assert store.keys.ids("ada")


def test_keys_are_for_the_administrator(cli: Cli) -> None:
    cli.in_a_session()
    for command in (("rotate",), ("destroy", "ada")):
        assert "for the administrator" in cli.fails("keys", *command)
