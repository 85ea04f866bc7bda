"""From inside a session, what belongs to others is out of reach."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hub_config.demo.browserless import Researcher
from hub_config.demo.stage import Stage
from tests.e2e.scenes import end, host_port, open_with_a_secret, workload

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(120),
]

PROBE = """
import json, os, socket, urllib.error, urllib.request
def reach(host, port):
    try:
        socket.create_connection((host, port), timeout=2).close()
        return True
    except OSError:
        return False
def status(url, token=None):
    request = urllib.request.Request(url)
    if token:
        request.add_header("Authorization", "token " + token)
    try:
        return urllib.request.urlopen(request, timeout=5).status
    except urllib.error.HTTPError as error:
        return error.code
hosts = {hosts!r}
print(json.dumps({{
    "open": [[h, p] for h in hosts for p in {ports!r} if reach(h, p)],
    "hub": reach("127.0.0.1", {hub}),
    "seen": [p for p in {paths!r} if os.path.exists(p)],
    "homes": os.listdir("/home"),
    "users": sorted({{os.stat("/proc/" + p).st_uid for p in os.listdir("/proc") if p.isdigit()}}),
    "me": os.getuid(),
    "no_token": status({api!r} + "/workloads"),
    "wrong_token": status({api!r} + "/workloads", "nonsense"),
    "mine": status({api!r} + "/workloads", os.environ["JUPYTERHUB_API_TOKEN"]),
    "theirs": status({api!r} + "/workloads/{other}", os.environ["JUPYTERHUB_API_TOKEN"]),
}}))
"""


async def test_a_session_reaches_only_what_is_its_own(
    two_gpus: Stage, alice: Researcher, bob: Researcher
) -> None:
    await open_with_a_secret(bob, "cpu")
    other = str((await workload(two_gpus, "bob"))["id"])
    kernel_id, _ = await open_with_a_secret(alice, "cpu")
    port = two_gpus.port
    inside_only = [port + 1, port + 3, port + 4, host_port(two_gpus, other)]
    probe = PROBE.format(
        hosts=["127.0.0.1", "::1", *machine_addresses()],
        ports=inside_only,
        hub=port,
        paths=[str(two_gpus.state), "/root", "/home/bob", "/var/lib/hubernate/secrets"],
        api=f"http://127.0.0.1:{port}/services/hubernate/api/v1",
        other=other,
    )
    async with alice.kernel(kernel_id) as kernel:
        found: dict[str, Any] = json.loads(await kernel.run(probe))
    assert found["open"] == []
    assert found["hub"] is True
    # Where the downloads lie below the state folder, only the environment's own path is visible.
    assert [p for p in found["seen"] if p != str(two_gpus.state)] == []
    assert found["homes"] == ["alice"]
    assert found["users"] == [found["me"]]
    assert found["no_token"] in {401, 403}
    assert found["wrong_token"] in {401, 403}
    assert found["mine"] == 200
    assert found["theirs"] in {403, 404}
    await end(alice)
    await end(bob)


def machine_addresses() -> list[str]:
    """The machine's own addresses and its gateway's, which some set-ups map to the loopback."""
    import socket

    import psutil

    addresses = [
        entry.address.split("%")[0]
        for entries in psutil.net_if_addrs().values()
        for entry in entries
        if entry.family in (socket.AF_INET, socket.AF_INET6)
    ]
    with open("/proc/net/route") as handle:
        for line in list(handle)[1:]:
            gateway = bytes.fromhex(line.split()[2])[::-1]
            if any(gateway):
                addresses.append(".".join(map(str, gateway)))
    return sorted({a for a in addresses if a not in {"127.0.0.1", "::1"}})
