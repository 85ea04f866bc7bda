"""`hubernate snapshots gc` and `log`: on a real store, with a real scheduler and a Hub's user list."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from hub_config import audit
from hub_config.collection import only_collector
from hub_config.commands.collect import LOCK
from hub_config.hub_users import PAGE, hub_users
from hub_config.paths import StateFolder
from hub_config.settings import LocalSettings, Ports, write_settings
from scheduler_bridge.model.phases import Phase
from scheduler_bridge.model.workload import SnapshotRef, Workload
from snapshot.repository import Repository
from tests.hub_config.cli_bench import Cli, running_service, state_at
from tests.hub_config.cli_store import keep, store_at

DAY = 86400.0


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cli]:
    with running_service() as service:
        cli = Cli(service, state_at(tmp_path / "state", service.port), monkeypatch)
        cli.as_root()
        yield cli


@pytest.fixture
def store(cli: Cli) -> Repository:
    return store_at(cli.state)


def rules(cli: Cli, text: str) -> None:
    cli.state.retention_file.write_text(f"version: 1\nrules:\n  - name: strict\n{text}")


def running(cli: Cli, user: str = "ada") -> Workload:
    session = cli.service.session(user)
    cli.service.run(session)
    return session


def suspended(cli: Cli, store: Repository, user: str = "ada", snapshots: int = 1) -> list[str]:
    """A suspended session's snapshots, the last of which is its current one."""
    session = running(cli, user)
    keys = [keep(store, user, n + 1, session=session.id) for n in range(snapshots)]
    cli.service.move(session, Phase.SUSPENDING)
    cli.service.move(session, Phase.SUSPENDED, snapshot=SnapshotRef(keys[-1], 1, snapshots))
    return keys


def stored(store: Repository) -> list[str]:
    return [each.manifest for each in store.list()]


def packs(state: StateFolder) -> list[Path]:
    return [path for path in (state.root / "objects" / "packs").rglob("*") if path.is_file()]


def test_without_rules_of_ones_own_nothing_that_a_session_needs_goes(
    cli: Cli, store: Repository
) -> None:
    keys = suspended(cli, store, snapshots=2)
    report = cli.json("snapshots", "gc")
    assert report["removed"] == report["dates"] == []
    assert stored(store) == keys


def test_older_snapshots_go_with_a_line_and_a_dry_run_only_says_so(
    cli: Cli, store: Repository
) -> None:
    first, second, third = suspended(cli, store, snapshots=3)
    rules(cli, "    keep_last: 1\n")
    said = cli.ok("snapshots", "gc", "--dry-run")
    assert f"would remove {first} of ada" in said
    assert "(rule strict)" in said
    assert len(stored(store)) == 3
    assert audit.read(cli.state.gone_file) == ()
    assert f"removed {first} of ada" in cli.ok("snapshots", "gc")
    assert stored(store) == [second, third]
    (line,) = cli.json("snapshots", "log")
    assert (line["what"], line["rule"], line["owner"]) == (first, "strict", "ada")
    assert "more than 1 older" in line["reason"]
    assert line["stored_bytes"] > 0
    assert "strict" in cli.ok("snapshots", "log", "--user", "ada")
    assert cli.json("snapshots", "log", "--user", "bob") == []


def test_a_suspended_session_gets_a_date_that_everybody_sees(cli: Cli, store: Repository) -> None:
    (key,) = suspended(cli, store)
    rules(cli, "    keep_suspended_for: 30d\n")
    assert "is kept until" in cli.ok("snapshots", "gc")
    day = time.strftime("%Y-%m-%d", time.localtime(time.time() + 30 * DAY))
    assert f"memory is kept until {day}: suspended for 30 days" in cli.ok("sessions", "list")
    shown = cli.ok("sessions", "show", "ada")
    assert "suspended for 30 days (rule strict)" in shown
    assert "expiry" in shown
    assert f"until {day}" in cli.ok("snapshots", "list")
    (listed,) = cli.json("snapshots", "list")
    assert listed["expiry"]["rule"] == "strict"
    assert cli.json("snapshots", "gc")["dates"] == []
    assert stored(store) == [key]
    cli.in_a_session()
    assert f"kept until {day}" in cli.ok("sessions", "list")


def test_a_stricter_policy_deletes_nothing_that_was_not_announced(
    cli: Cli, store: Repository
) -> None:
    keys = suspended(cli, store)
    rules(cli, "    keep_suspended_for: 0\n")
    for _ in range(2):
        cli.ok("snapshots", "gc")
    assert stored(store) == keys
    assert cli.service.do(lambda s: s.list())[0].phase is Phase.SUSPENDED


def test_what_was_stopped_goes_and_its_packs_after_the_grace(cli: Cli, store: Repository) -> None:
    session = running(cli)
    key = keep(store, "ada", session=session.id)
    cli.service.move(session, Phase.STOPPED)
    rules(cli, "    keep_ended_for: 0\n")
    report = cli.json("snapshots", "gc")
    assert [each["manifest"] for each in report["removed"]] == [key]
    assert report["freed_bytes"] == 0
    assert report["waiting_bytes"] > 0
    assert stored(store) == []
    assert packs(cli.state)


def test_snapshots_of_nobody_knows_what_stay(cli: Cli, store: Repository) -> None:
    key = keep(store, "ada")
    rules(cli, "    keep_ended_for: 0\n    keep_last: 0\n    bytes_per_user: 1MiB\n")
    cli.ok("snapshots", "gc")
    assert stored(store) == [key]


def test_while_the_scheduler_is_silent_no_snapshot_goes(cli: Cli, store: Repository) -> None:
    keys = suspended(cli, store, snapshots=2)
    rules(cli, "    keep_last: 0\n")
    cli.state.ports_file.write_text(json.dumps({"public": 6}))
    result = cli("snapshots", "gc")
    assert result.exit_code == 0
    assert "No snapshot was judged" in result.stderr
    assert stored(store) == keys


def test_a_policy_with_a_mistake_deletes_nothing(cli: Cli, store: Repository) -> None:
    suspended(cli, store, snapshots=3)
    rules(cli, "    keep_lats: 0\n")
    result = cli("snapshots", "gc")
    assert result.exit_code == 1
    assert "retention.yaml:4: keep_lats: unknown key; did you mean keep_last?" in result.stderr
    assert len(stored(store)) == 3


def test_one_run_at_a_time(cli: Cli, store: Repository) -> None:
    with only_collector(cli.state.run / LOCK):
        assert "Another run is under way" in cli.fails("snapshots", "gc")
    cli.ok("snapshots", "gc")


def test_an_unreadable_manifest_is_named_and_protects_its_owners_packs(
    cli: Cli, store: Repository
) -> None:
    key = keep(store, "ada")
    path = cli.state.root / "objects" / key
    path.write_bytes(path.read_bytes()[:-1])
    result = cli("snapshots", "gc")
    assert f"no pack of ada goes, as {key} cannot be read" in result.stderr


def test_what_a_killed_upload_left_is_swept_when_it_is_old(cli: Cli, store: Repository) -> None:
    keep(store, "ada")
    left = cli.state.root / "objects" / "packs" / "ada" / ".new-1234"
    left.write_bytes(b"half")
    assert cli.json("snapshots", "gc")["swept"] == 0
    os.utime(left, (0, 0))
    assert cli.json("snapshots", "gc")["swept"] == 1
    assert not left.exists()


def test_a_removal_by_hand_is_in_the_log(cli: Cli, store: Repository) -> None:
    key = keep(store, "ada")
    cli.ok("snapshots", "rm", key)
    (line,) = audit.read(cli.state.gone_file)
    assert (line.what, line.rule, line.actor) == (key, "by hand", "root")


# -- accounts ----------------------------------------------------------------------------------


class Hub(BaseHTTPRequestHandler):
    """Answers `GET /users` in pages, as the Hub does."""

    names: tuple[str, ...] = ()
    status = 200

    def do_GET(self) -> None:
        query = parse_qs(urlsplit(self.path).query)
        offset, limit = int(query["offset"][0]), int(query["limit"][0])
        page = self.names[offset : offset + limit]
        more = {"offset": offset + limit} if offset + limit < len(self.names) else None
        body = {"items": [{"name": n} for n in page], "_pagination": {"next": more}}
        self.send_response(self.status)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def hub() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        Hub.names, Hub.status = (), 200


def test_all_accounts_are_read_page_by_page(hub: str) -> None:
    Hub.names = tuple(f"user{number}" for number in range(PAGE + 3))
    assert hub_users(hub, "token") == frozenset(Hub.names)


def test_a_hub_that_does_not_tell_deletes_nobody(hub: str) -> None:
    Hub.status = 403
    assert hub_users(hub, "token") is None
    assert hub_users("http://127.0.0.1:9", "token") is None


def tell_accounts(cli: Cli, hub: str, *names: str) -> None:
    """The installation's Hub is the one at that address and knows these."""
    Hub.names = names
    ports = Ports((urlsplit(hub).port or 0) - 2)
    root = str(cli.state.root)
    write_settings(LocalSettings(root, root, ports), cli.state.settings_file)


def test_the_keys_of_a_deleted_account_go_when_they_open_nothing_any_more(
    cli: Cli, store: Repository, hub: str
) -> None:
    for owner in ("gone", "here", "runs", "kept"):
        store.keys.current(owner)
    running(cli, "runs")
    keep(store, "kept")
    cli.ok("snapshots", "gc")  # no Hub tells who exists
    assert store.keys.owners() == ("gone", "here", "kept", "runs")
    tell_accounts(cli, hub, "here")
    cli.ok("snapshots", "gc", "--dry-run")
    assert "gone" in store.keys.owners()
    cli.ok("snapshots", "gc")
    assert store.keys.owners() == ("here", "kept", "runs")
    assert [line.what for line in audit.read(cli.state.gone_file)] == ["keys/gone"]


def test_a_damaged_key_record_keeps_no_other_user_from_being_tended(
    cli: Cli, store: Repository
) -> None:
    for owner in ("ada", "bob"):
        store.keys.current(owner)
        store.keys.renew(owner, 0.0)
    (cli.state.root / "objects" / "keys" / "ada" / ("f" * 32)).write_bytes(b"damaged")
    result = cli("snapshots", "gc")
    assert result.exit_code == 0
    assert "the keys of ada stay as they are" in result.stderr
    assert len(store.keys.ids("ada")) == 3
    assert len(store.keys.ids("bob")) == 1


def test_the_session_of_a_deleted_account_gets_a_date(
    cli: Cli, store: Repository, hub: str
) -> None:
    suspended(cli, store, "ada"), suspended(cli, store, "bob")
    tell_accounts(cli, hub, "bob")
    dates = cli.json("snapshots", "gc")["dates"]
    assert [(each["owner"], each["date"]["reason"]) for each in dates] == [
        ("ada", "its owner's account was deleted")
    ]
