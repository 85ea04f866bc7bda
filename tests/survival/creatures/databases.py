"""sqlite: one in memory, one on disk in the middle of a transaction, one with a shared log."""

import os
import sqlite3

from stage import python, stages

home = os.path.expanduser("~")
memory = sqlite3.connect(":memory:")
memory.executescript("create table t (x); insert into t values (42)")
memory.execute("insert into t values (43)")  # not committed
disk = sqlite3.connect(f"{home}/disk.sqlite", isolation_level=None)
disk.executescript("create table t (x); begin immediate; insert into t values (1)")
log = sqlite3.connect(f"{home}/log.sqlite")
log.execute("pragma journal_mode=wal")
log.execute("create table t (x)")
log.commit()

LOCKED = """
import os, sqlite3
db = sqlite3.connect(os.path.expanduser("~/disk.sqlite"), timeout=0)
try:
    db.execute("begin immediate")
    print("free")
except sqlite3.OperationalError:
    print("locked")
"""
ADD = """
import os, sqlite3
db = sqlite3.connect(os.path.expanduser("~/log.sqlite"))
db.execute("insert into t values (1)")
db.commit()
"""

for number, stage in enumerate(stages(), start=1):
    assert memory.execute("select sum(x) from t").fetchone() == (85,)
    assert python(LOCKED) == "locked"
    log.execute("insert into t values (1)")
    log.commit()
    python(ADD)
    assert log.execute("select count(*) from t").fetchone() == (2 * number,)
    if stage == "again":
        memory.rollback()
        assert memory.execute("select x from t").fetchall() == [(42,)]
        disk.execute("commit")
        assert python(LOCKED) == "free"
        assert log.execute("pragma integrity_check").fetchone() == ("ok",)
