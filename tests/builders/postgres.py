"""A PostgreSQL server of a test's own: on a UNIX socket in a temporary folder, gone afterwards."""

from __future__ import annotations

import itertools
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

from hub_config.setup.postgres import server_programs

ACCOUNT = "postgres"
PASSWORD = "opens-nothing-but-this-test"
WITH_PASSWORD = "keeper"
_HBA = f"local all {WITH_PASSWORD} scram-sha-256\nlocal all all trust\n"
_SETTINGS = """
listen_addresses = ''
unix_socket_directories = '{folder}'
shared_buffers = 16MB
max_connections = 30
# what is tested survives the death of the server, not of the machine
fsync = off
"""


class PostgresServer:
    """One cluster, run by an account without privileges. `database` makes an empty one."""

    def __init__(self, folder: Path, programs: Path) -> None:
        self._folder, self._programs = folder, programs
        self._numbers = itertools.count(1)

    def set_up(self) -> None:
        """Make the cluster, with a superuser without password and a role that has one."""
        self._run("initdb", "--no-sync", "--encoding=UTF8", "--locale=C", f"--username={ACCOUNT}")
        (self._folder / "data/pg_hba.conf").write_text(_HBA)
        with (self._folder / "data/postgresql.conf").open("a") as settings:
            settings.write(_SETTINGS.format(folder=self._folder))
        self.start()
        self.execute(f"CREATE ROLE {WITH_PASSWORD} LOGIN SUPERUSER PASSWORD '{PASSWORD}'")

    def start(self) -> None:
        """Returns when it answers."""
        self._run("pg_ctl", "start", "--wait", "--silent", f"--log={self._folder}/log")

    def stop(self, mode: str = "fast") -> None:
        """`immediate` ends it as a crash would."""
        self._run("pg_ctl", "stop", "--wait", "--silent", f"--mode={mode}")

    def database(self) -> str:
        """URL of a new, empty database."""
        name = f"test_{next(self._numbers)}"
        self.execute(f"CREATE DATABASE {name}")
        return f"postgresql://{ACCOUNT}@/{name}?host={self._folder}"

    def execute(self, statement: str, database: str = "postgres") -> list[Any]:
        """What the statement answers, in a connection of its own."""
        with psycopg.connect(
            host=str(self._folder), user=ACCOUNT, dbname=database, autocommit=True
        ) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def _run(self, program: str, *arguments: str) -> None:
        account = ACCOUNT if os.geteuid() == 0 else None
        subprocess.run(
            [self._programs / program, *arguments, "-D", self._folder / "data"],
            user=account,
            group=account,
            extra_groups=[] if account else None,
            env={"PATH": os.environ["PATH"], "LC_ALL": "C"},
            cwd=self._folder,
            stdout=subprocess.DEVNULL,
            check=True,
        )


@contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    """A running server. Raises `RuntimeError` where none is installed."""
    programs = server_programs()
    if programs is None:
        raise RuntimeError("PostgreSQL is not installed on this machine. `make setup` brings it.")
    # short, and reachable by the account: a socket's path has at most 107 characters
    folder = Path(tempfile.mkdtemp(prefix="hubernate-pg-"))
    if os.geteuid() == 0:
        owner = pwd.getpwnam(ACCOUNT)
        os.chown(folder, owner.pw_uid, owner.pw_gid)
    server = PostgresServer(folder, programs)
    try:
        server.set_up()
        yield server
    finally:
        if (folder / "data/postmaster.pid").exists():
            server.stop("immediate")
        shutil.rmtree(folder)
