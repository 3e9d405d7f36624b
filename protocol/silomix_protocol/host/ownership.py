"""File ownership: what a party trusts may be changed by its own user and by root alone.

That is configuration, policy, study files, keys, the party's folder and its state; sshd asks the
same of its own files.  Whoever else could write one would decide what the party does, so the party
refuses to work with it.

The party's user is the one whose process this is; a process of root's works for the user whom the
folder belongs to.  A file must be writable by its owner only.  A folder may also be writable by a
group that is that user's alone, as a volume of Kubernetes is.  Folders above it may belong to
anybody, but nobody may exchange what is in them: if others can write there, they must have the
sticky bit, as /tmp has.  A link is trusted as far as every folder that it leads through.
"""

import grp
import os
import pwd
import stat
from collections.abc import Iterator
from pathlib import Path

_OTHERS, _GROUP = stat.S_IWOTH, stat.S_IWGRP
_MOST_LINKS = 40  # in a row, as Linux has it
_BESIDE_STATE = ("sign.key", "node.key", "tls.key", "tls.next.key", "ca.key", "ca.crt")


class OpenToOthers(Exception):
    """Somebody else could change what this party trusts; the message says what to do."""


def read_own(path: Path) -> bytes:
    """The content of a file that only the party's user, and root, can change."""
    user = _party_user(path.parent.resolve())
    for place in _places(path):
        _check_not_shared(path, place)
        _check_folder(place, user)
    with path.open("rb") as file:
        _check_file(path, os.fstat(file.fileno()), user)
        return file.read()


def check_state(state: Path) -> None:
    """Raise OpenToOthers if others could change what a party keeps, or the keys beside it.

    The folder need not exist yet.  What others can only read passes this check: whoever uses a
    secret refuses it then (`keys.read_secret`).
    """
    user = _party_user(state.parent.resolve())
    _check_keys(state.parent, user)
    if not state.exists():
        return
    _check_folder(state.resolve(), user)
    for name in os.listdir(state):
        path = state / name
        try:
            found = path.lstat()
        except FileNotFoundError:
            continue  # a running party has just replaced it
        if stat.S_ISDIR(found.st_mode):
            _check_folder(path.resolve(), user)
        elif not stat.S_ISLNK(found.st_mode):  # a link has no mode, and is nobody else's in here
            _check_file(path, found, user)


def check_owner(path: Path) -> None:
    """Raise OpenToOthers unless a file, perhaps a secret, is the party's user's or root's."""
    _check_owner(path, path.stat(), _party_user(path.parent.resolve()))


def _party_user(folder: Path) -> int:
    """The id of the user whose process this is; if it is root's, of the folder's owner."""
    return os.geteuid() or folder.stat().st_uid


def _check_keys(folder: Path, user: int) -> None:
    """Refuse keys of the party, or an authority's certificate, that somebody else could change."""
    for name in _BESIDE_STATE:
        path = folder / name
        try:
            found = path.stat()
        except FileNotFoundError:
            continue  # not every party has each, and a renewal renames one
        _check_file(path, found, user)


def _places(path: Path) -> Iterator[Path]:
    """The folder of a file; for a link, the folders of all that it leads to, in turn."""
    for _ in range(_MOST_LINKS):
        yield path.parent.resolve()
        if not path.is_symlink():
            return
        path = path.parent / path.readlink()


def _check_not_shared(path: Path, folder: Path) -> None:
    """Refuse a file in a folder that is everybody's: the mode is right, the file's place is not."""
    mode = folder.stat().st_mode
    if mode & _OTHERS and mode & stat.S_ISVTX:
        leads = f"{path} leads to {path.resolve()}" if path.is_symlink() else str(path)
        raise OpenToOthers(
            f"{leads}: other users could change it, since {folder} is everybody's (mode "
            f"{stat.S_IMODE(mode):o}); move the file into a folder that belongs to you"
        )


def _check_folder(folder: Path, user: int) -> None:
    """Refuse a folder that others could change or exchange for another one."""
    found = folder.stat()
    _check_owner(folder, found, user)
    if _has_other_writers(found, user):
        raise OpenToOthers(_writable(folder, found))
    for above in folder.parents:
        found = above.stat()
        if _has_other_writers(found, user) and not found.st_mode & stat.S_ISVTX:
            raise OpenToOthers(f"{_writable(above, found)} (or +t), or move {folder} elsewhere")


def _check_file(path: Path, found: os.stat_result, user: int) -> None:
    _check_owner(path, found, user)
    if found.st_mode & (_OTHERS | _GROUP):
        raise OpenToOthers(_writable(path, found))


def _check_owner(path: Path, found: os.stat_result, user: int) -> None:
    if found.st_uid not in (0, user):
        raise OpenToOthers(
            f"{path}: belongs to {_name(found.st_uid)}, who could change it; if it is yours, run: "
            f"chown {_name(user)} {path}"
        )


def _has_other_writers(found: os.stat_result, user: int) -> bool:
    """Return whether others can write to a folder; a group of the user's alone is fine."""
    if found.st_mode & _OTHERS:
        return True
    return bool(found.st_mode & _GROUP) and not _is_private(found.st_gid, user)


def _is_private(number: int, user: int) -> bool:
    try:
        group = grp.getgrgid(number)
    except KeyError:  # a container whose groups have no names
        return number == os.getegid()
    return group.gr_name == _name(user) and set(group.gr_mem) <= {group.gr_name}


def _writable(path: Path, found: os.stat_result) -> str:
    mode = stat.S_IMODE(found.st_mode)
    return f"{path}: other users could change it (mode {mode:o}); run: chmod go-w {path}"


def _name(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return str(user)
