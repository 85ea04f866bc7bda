"""The programs of one machine: how each is started, and when it counts as ready."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import httpx

from hub_config.children import Probe, Program
from hub_config.paths import SYSTEM_PATH
from hub_config.secrets_store import SecretFiles
from hub_config.settings import HOST, SERVICE_NAME, LocalSettings, write_json
from hub_config.store_server import store_program

_HUB_CONFIGURATION = """\
# Written by `hubernate up` at every start. What belongs here for good: {config}/jupyterhub.py,
# which is read afterwards where it exists.
import os
from pathlib import Path

from hub_config.local import configure
from hub_config.settings import read_settings

c = get_config()  # noqa
configure(c, read_settings(Path({settings!r})))
if os.path.exists({extra!r}):
    load_subconfig({extra!r})  # noqa
"""
_PASSED_ON = ("LANG", "LC_ALL", "TZ", "SSL_CERT_FILE", "http_proxy", "https_proxy", "no_proxy")


def base_environment(settings: LocalSettings, outer: Mapping[str, str]) -> dict[str, str]:
    """What every program gets: a fixed PATH, the folders, and nothing else of the caller's shell,
    so that the next start finds the same programs, and no secret of root's wanders about."""
    folder = settings.folder()
    node = folder.node()
    path = [str(folder.venv / "bin"), *([str(node.parent)] if node else [])]
    path.append(SYSTEM_PATH)
    return {name: outer[name] for name in _PASSED_ON if name in outer} | {
        "PATH": ":".join(path),
        "HOME": str(folder.hub),
        "HUBERNATE_STATE": settings.state,
        "HUBERNATE_DOWNLOADS": settings.downloads,
        "PYTHONUNBUFFERED": "1",
    }


def all_programs(settings: LocalSettings, secret_files: SecretFiles) -> tuple[Program, ...]:
    """In the order of their start; each needs those before it."""
    environment = base_environment(settings, os.environ)
    return (
        store_program(settings, secret_files, environment),
        scheduler_program(settings, secret_files, environment),
        hub_program(settings, secret_files, environment),
        reclaimer_program(settings, secret_files, environment),
    )


def scheduler_program(
    settings: LocalSettings, secret_files: SecretFiles, environment: dict[str, str]
) -> Program:
    """The scheduler: an external service of the Hub, which it asks who a caller is. What an operator
    writes into `scheduler.py` beside our configuration is read too; ours wins."""
    folder = settings.folder()
    configuration = folder.config / "scheduler.json"
    write_json(configuration, {"SchedulerService": scheduler_traits(settings, secret_files)})
    return Program(
        name="scheduler",
        argv=(*_python(settings), "-m", "scheduler_bridge", f"--config={configuration}"),
        environment=environment,
        log_file=folder.logs / "scheduler.log",
        probe=answers(f"{settings.scheduler_url}/readyz"),
        inputs=(
            configuration,
            configuration.with_suffix(".py"),
            secret_files.service_tokens_file,
        ),
        folder=folder.scheduler,
    )


def scheduler_traits(settings: LocalSettings, secret_files: SecretFiles) -> dict[str, object]:
    """The scheduler's configuration on this machine, written anew at every start. Where its state is
    an operator may say; otherwise it is a file in the folder in which the scheduler is started."""
    folder = settings.folder()
    return {
        "bind_address": HOST,
        "port": settings.ports.scheduler,
        "prefix": f"/services/{SERVICE_NAME}",
        "service_tokens_file": str(secret_files.service_tokens_file),
        "hub_api_url": settings.hub_api_url,
        "hub_token_file": str(secret_files.service_token_file("scheduler")),
        "virtual_gpus": settings.virtual_gpus or -1,
        "virtual_gpu_folder": str(folder.vgpu),
        "run_folder": str(folder.run),
        "job_request_folder": str(folder.scheduler / "requests"),
        "facts_command": ["{python}", "-P", "-m", "hub_config.node_facts"],
        "job_command": [
            *("{python}", "-P", "-m", "spawner.launch_job"),
            *("--site", str(folder.site_file), "--request", "{request}"),
        ],
    }


def hub_program(
    settings: LocalSettings, secret_files: SecretFiles, environment: dict[str, str]
) -> Program:
    """JupyterHub, which starts its proxy itself. Ready when the Hub answers through the proxy."""
    folder = settings.folder()
    configuration = write_hub_configuration(settings)
    return Program(
        name="hub",
        argv=(*_python(settings), "-m", "jupyterhub", "-f", str(configuration)),
        environment=environment
        | {
            "JUPYTERHUB_CRYPT_KEY": secret_files.crypt_key(),
            "CONFIGPROXY_AUTH_TOKEN": secret_files.proxy_token(),
        },
        log_file=folder.logs / "hub.log",
        probe=answers(f"{settings.public_url}/hub/health", f"{settings.hub_api_url}/"),
        ready_seconds=60.0,
        end_seconds=20.0,
        inputs=(configuration, folder.settings_file),
        folder=folder.hub,
    )


def write_hub_configuration(settings: LocalSettings) -> Path:
    """The file that JupyterHub loads. Returns where it is."""
    folder = settings.folder()
    path = folder.hub / "jupyterhub_config.py"
    extra = folder.config / "jupyterhub.py"
    path.write_text(
        _HUB_CONFIGURATION.format(
            config=folder.config, settings=str(folder.settings_file), extra=str(extra)
        )
    )
    return path


def reclaimer_program(
    settings: LocalSettings, secret_files: SecretFiles, environment: dict[str, str]
) -> Program:
    """The reclaimer: speaks only to the scheduler, serves nothing."""
    folder = settings.folder()
    token = secret_files.service_token_file("reclaimer")
    log_file = folder.logs / "reclaimer.log"
    return Program(
        name="reclaimer",
        argv=(
            *_python(settings),
            "-m",
            "reclaimer",
            f"--scheduler-url={settings.scheduler_url}",
            f"--token-file={token}",
            f"--policy={folder.policy_file}",
        ),
        environment=environment,
        log_file=log_file,
        probe=answers(f"{settings.scheduler_url}/readyz"),
        settle_seconds=1.0,
        inputs=(token,),
        folder=folder.config,
    )


def answers(*urls: str) -> Probe:
    """Ready when every address answers with a success."""

    async def probe() -> str:
        async with httpx.AsyncClient(timeout=3.0) as client:
            for url in urls:
                try:
                    response = await client.get(url)
                except httpx.HTTPError as error:
                    return f"{url}: {error or type(error).__name__}"
                if not response.is_success:
                    return f"{url} answers {response.status_code}"
        return ""

    return probe


def _python(settings: LocalSettings) -> tuple[str, ...]:
    # -P: the folder that a program happens to start in is no place to import from.
    return (str(settings.folder().venv / "bin/python"), "-P")
