"""The frozen data of an approved study: one file, its SHA-256 in the ledger.

The file begins with random bytes: without them, whoever sees the hash and knows all records but one
could try values for that one.

From approval on, nothing that a silo does depends on how its records are read, only on this
file; its number of records is public.
"""

import os
from hashlib import sha256
from io import BytesIO
from pathlib import Path

import numpy as np
from silomix_core.model.clipped_sum import Records
from silomix_core.study.study import StudyId
from silomix_core.task.task import UNIT
from silomix_protocol.host.durable import make_folder, write_durably

from silomix_client.errors import NotApproved

FOLDER = "snapshots"
_SALT_BYTES = 32


def freeze(records: Records, study: StudyId, folder: Path) -> bytes:
    """Write the snapshot durably and return its SHA-256."""
    packed = np.empty((len(records), records.features.shape[1] + 1), dtype=np.int32)
    packed[:, :-1] = records.features
    packed[:, -1] = records.labels * UNIT  # whole numbers, as `Task.encode_labels` makes them
    buffer = BytesIO(os.urandom(_SALT_BYTES))
    buffer.seek(_SALT_BYTES)
    np.save(buffer, packed)
    content = buffer.getvalue()
    make_folder(folder)
    write_durably(_path(study, folder), content)
    return sha256(content).digest()


def thaw(study: StudyId, digest: bytes, folder: Path) -> Records:
    """The records of a snapshot that has not changed since it was frozen."""
    packed = np.load(BytesIO(unchanged(study, digest, folder)[_SALT_BYTES:]), allow_pickle=False)
    return Records(packed[:, :-1].astype(np.float64), packed[:, -1] / UNIT)


def unchanged(study: StudyId, digest: bytes, folder: Path) -> bytes:
    """The snapshot's bytes, if they are those that were frozen."""
    path = _path(study, folder)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise NotApproved(f"{path}: {error.strerror}; the study cannot be answered") from error
    if sha256(content).digest() != digest:
        raise NotApproved(f"{path} changed since the study was approved")
    return content


def forget(study: StudyId, folder: Path) -> None:
    """Delete the snapshot of a study that is answered no more."""
    _path(study, folder).unlink(missing_ok=True)


def _path(study: StudyId, folder: Path) -> Path:
    return folder / f"{study.hex()}.snapshot"
