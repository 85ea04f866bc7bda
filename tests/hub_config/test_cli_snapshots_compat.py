"""`hubernate snapshots compat` on a real store and the real scheduler service."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduler_bridge.model.phases import Desired, Phase
from scheduler_bridge.model.workload import Gpu, Node, SnapshotRef
from snapshot import host_facts
from snapshot.model import SnapshotKey, StoreSettings
from snapshot.repository import Repository, open_repository
from spawner.site import LocalSite, write_site
from tests.hub_config.cli_bench import Cli, running_service, state_at

KERNEL = host_facts.machine()["kernel"]
PLAIN = {"kernel": KERNEL, "criu": "4.2", "architecture": "x86_64", "cpu_flags": "fpu"}
ON_GPUS = PLAIN | {"gpu_driver": "580.95.05", "gpu_models": "NVIDIA H200"}


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cli]:
    with running_service() as service:
        cli = Cli(service, state_at(tmp_path / "state", service.port), monkeypatch)
        cli.as_root()
        yield cli


@pytest.fixture
def store(cli: Cli) -> Repository:
    return store_of(cli)


def store_of(cli: Cli) -> Repository:
    """A new store of this installation."""
    folders = [cli.state.root / name for name in ("objects", "keys")]
    for folder in folders:
        folder.mkdir(mode=0o700)
    settings = StoreSettings("directory", str(folders[0]), keys_directory=str(folders[1]))
    site = LocalSite(
        python="python",
        environment_directory="",
        run_directory="",
        homes_directory="",
        users_file="",
        scheduler_url="",
        tools=cli.state.tools(),
        store=settings,
    )
    write_site(site, cli.state.site_file)
    return open_repository(settings)


def suspended(cli: Cli, store: Repository, user: str, constraints: dict[str, str]) -> str:
    """A session that waits in a snapshot with these constraints; returns its key."""
    with store.writer(SnapshotKey(user, f"session:hub/{user}/", 1, 1), {}) as writer:
        writer.add_file("core", user.encode() * 1000)
        key = writer.commit({"constraints": constraints}).manifest
    session = cli.service.run(cli.service.session(user))
    cli.service.move(session, Phase.SUSPENDING)
    cli.service.move(session, Phase.SUSPENDED, snapshot=SnapshotRef(key, 1, 1))
    return key


def test_those_whom_an_upgrade_strands_are_listed_with_the_reason(
    cli: Cli, store: Repository
) -> None:
    key = suspended(cli, store, "ada", ON_GPUS)
    suspended(cli, store, "bob", PLAIN)
    result = cli("snapshots", "compat", "--after", "driver=590.10", "--json")
    assert result.exit_code == 1
    said = json.loads(result.stdout)
    assert said["judged"] == 2
    assert said["after"] == {"gpu_driver": "590.10"}
    (stranded,) = said["stranded"]
    assert (stranded["user"], stranded["session"], stranded["key"]) == ("ada", "ada", key)
    assert 0 <= stranded["age_seconds"] < 60
    (reason,) = stranded["reasons"]
    assert reason["what"] == "gpu_driver"
    assert "driver 580.95.05; this machine has 590.10" in reason["why"]
    shown = cli("snapshots", "compat", "--after", "driver=590.10")
    assert shown.exit_code == 1
    assert "1 of 2 could not be brought back" in shown.stdout
    assert "580.95.05" in shown.stdout


@pytest.mark.parametrize("after", ["driver=580.95.05", "kernel=99.1", "criu=4.3"])
def test_an_upgrade_that_strands_nobody(cli: Cli, store: Repository, after: str) -> None:
    suspended(cli, store, "ada", ON_GPUS)
    assert cli.ok("snapshots", "compat", "--after", after) == "Everybody can be brought back.\n"
    assert cli.json("snapshots", "compat", "--after", after)["stranded"] == []


def test_going_back_strands(cli: Cli, store: Repository) -> None:
    suspended(cli, store, "ada", PLAIN)
    for after, what in (("kernel=5.10.2", "Linux 5.10.2|older 5.10.2"), ("criu=4.1", "CRIU 4.2")):
        result = cli("snapshots", "compat", "--after", after)
        assert result.exit_code == 1
        assert any(word in " ".join(result.stdout.split()) for word in what.split("|"))


def test_a_session_that_runs_is_not_stranded(cli: Cli, store: Repository) -> None:
    suspended(cli, store, "ada", ON_GPUS)
    assert cli("snapshots", "compat", "--after", "driver=590.1").exit_code == 1
    (workload,) = cli.service.do(lambda s: s.list())
    cli.service.run(
        cli.service.do(
            lambda s: s.desire(workload.id, Desired.RUNNING, actor="ada", reason="a click")
        )
    )
    assert cli.json("snapshots", "compat", "--after", "driver=590.1")["judged"] == 0


def test_what_an_old_snapshot_does_not_say_is_told(cli: Cli, store: Repository) -> None:
    suspended(cli, store, "ada", {"kernel": KERNEL, "architecture": "x86_64"})
    said = cli.json("snapshots", "compat", "--after", "criu=4.3")
    assert (said["stranded"], said["unknown"][0]["unknown"]) == ([], ["criu"])
    assert "not known" in cli.ok("snapshots", "compat", "--after", "criu=4.3")


def test_without_an_upgrade_this_machine_is_judged(cli: Cli, store: Repository) -> None:
    suspended(cli, store, "ada", PLAIN | {"cpu_flags": "fpu avx4096"})
    result = cli("snapshots", "compat")
    assert result.exit_code == 1
    assert "avx4096" in result.stdout


def test_without_the_scheduler_the_newest_of_each_session_is_judged(
    cli: Cli, store: Repository
) -> None:
    suspended(cli, store, "ada", ON_GPUS)
    cli.state.ports_file.write_text('{"public": 5}')
    result = cli("snapshots", "compat", "--after", "driver=590.1")
    assert result.exit_code == 1
    assert "Judged by the newest snapshot of each session" in result.stderr
    assert "session:hub/ada/" in result.stdout


def test_one_users_only(cli: Cli, store: Repository) -> None:
    suspended(cli, store, "ada", ON_GPUS)
    said = cli.ok("snapshots", "compat", "--after", "driver=590.1", "--user", "bob")
    assert said == "Everybody can be brought back.\n"


def test_an_upgrade_that_is_not_understood(cli: Cli, store: Repository) -> None:
    said = cli.fails("snapshots", "compat", "--after", "kernal=6.20", code=2)
    assert "known are driver=…, kernel=…, image=…, criu=…" in said
    assert "looks like kernel=6.18.4" in cli.fails(
        "snapshots", "compat", "--after", "kernel=newest", code=2
    )


def test_it_is_for_the_administrator(cli: Cli, store: Repository) -> None:
    cli.in_a_session()
    assert "for the administrator" in cli.fails("snapshots", "compat", "--after", "criu=4.3")


def machine(name: str, *models: str, driver: str) -> Node:
    """A machine that has told what it is."""
    gpus = tuple(Gpu(f"{name}-{n}", name, n, it, "/dev/null") for n, it in enumerate(models))
    return Node(name, gpus, facts=PLAIN | {"gpu_driver": driver, "image": ""})


FLEET = (
    machine("n1", "NVIDIA L4", "NVIDIA H200", driver="580.95.05"),
    machine("n2", "NVIDIA H200", driver="580.95.05"),
    machine("n3", "NVIDIA L4", driver="580.95.05"),
)


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cli]:
    with running_service(nodes=FLEET) as service:
        cli = Cli(service, state_at(tmp_path / "state", service.port), monkeypatch)
        cli.as_root()
        yield cli


def test_each_machine_is_judged(fleet: Cli) -> None:
    store = store_of(fleet)
    suspended(fleet, store, "ada", ON_GPUS)
    assert "can be brought back only on n1, n2" in fleet.ok("snapshots", "compat")
    upgrade = ("snapshots", "compat", "--after", "driver=590.1")
    text = " ".join(fleet.ok(*upgrade, "--node", "n1").split())
    assert "can be brought back only on n2" in text

    said = fleet(*upgrade, "--json")
    assert said.exit_code == 1
    (stranded,) = json.loads(said.stdout)["stranded"]
    assert [it["what"] for it in stranded["reasons"]] == ["gpu_driver"]
    nodes = {it["node"]: [why["what"] for why in it["reasons"]] for it in stranded["nodes"]}
    assert nodes == {
        "n1": ["gpu_driver"],
        "n2": ["gpu_driver"],
        "n3": ["gpu_driver", "gpu_models"],
    }
    assert "n3: " in fleet(*upgrade).stdout


def test_the_very_gpu_is_only_where_it_is(fleet: Cli) -> None:
    store = store_of(fleet)
    suspended(fleet, store, "ada", ON_GPUS | {"gpu_uuids": "n2-0"})
    (fewer,) = fleet.json("snapshots", "compat")["fewer"]
    assert [it["node"] for it in fewer["nodes"] if not it["reasons"]] == ["n2"]


def test_a_machine_that_is_not_there(fleet: Cli) -> None:
    store_of(fleet)
    said = fleet.fails("snapshots", "compat", "--after", "driver=590.1", "--node", "n9")
    assert "no machine n9" in said and "n1, n2, n3" in said
