"""What Flower keeps in the server's state folder: kept if it is whole, otherwise made anew.

Flower syncs little of what it writes and trusts whatever it finds: the folder of an installed app
counts as installed even if a power cut emptied its files, and a database whose tables were half
made by a killed process is never finished.  Nothing of it lasts: the silos' keys are registered,
the run is started and the app is installed at every start.  (The database is kept all the same:
silos that wait for a restarted server are then still its nodes.)
"""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

from silomix_protocol.host import logs

from silomix_server.config import ServerConfig

HOME, APP = "flwr", "app"  # Flower's own folder, and the app that is handed to it
DATABASE = "superlink.sqlite"


def make_ready(config: ServerConfig) -> None:
    """Remove what a start of Flower could stumble over, before any of its processes runs."""
    for name in (HOME, APP):
        shutil.rmtree(config.state / name, ignore_errors=True)
    database = config.state / DATABASE
    if database.exists() and (problem := _problem(database)):
        logs.warning("flower_database_made_anew", file=database, reason=problem)
        for suffix in ("", "-wal", "-shm"):
            database.with_name(DATABASE + suffix).unlink(missing_ok=True)


def _problem(database: Path) -> str | None:
    """Why the database cannot be used by this Flower, whose last migration it must have."""
    from alembic.script import ScriptDirectory  # not at a first start, which has no database
    from flwr.supercore.state.alembic.utils import ALEMBIC_DIR, ALEMBIC_VERSION_TABLE

    try:
        with closing(sqlite3.connect(database, timeout=5.0)) as opened:
            (found,) = opened.execute("PRAGMA quick_check(1)").fetchone()
            rows = opened.execute(f"SELECT version_num FROM {ALEMBIC_VERSION_TABLE}")  # noqa: S608
            versions = {row[0] for row in rows}
    except sqlite3.Error as error:
        return str(error)
    if found != "ok":
        return str(found)
    wanted = set(ScriptDirectory(str(ALEMBIC_DIR)).get_heads())
    return None if versions == wanted else "its tables are unfinished, or another Flower's"
