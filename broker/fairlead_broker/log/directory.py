"""One data directory: its lock and identity, the checkpoint of all partitions, and the folders of topics.

    <data>/.fairlead/{lock, identity, checkpoint, synced, clean, reserve}
    <data>/<topic id>/<partition>/

`wiring` opens the directory and `runtime` uses it. The module must not know which topics should exist: a
folder is deleted only by a call that names it, and unknown folders are moved aside and reported. Layout of
every file: docs/reference/files.md. This code is in one file because opening, dropping and removing partitions all
change entries of one checkpoint.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Collection, Container
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Final

import msgspec

from fairlead_api.configuration import TopicConfig
from fairlead_api.identifiers import BrokerEpoch, Offset, PartitionIndex, TopicId, TopicIdPartition
from fairlead_broker.clock import Clock
from fairlead_broker.compaction.cleanable import NEVER_CLEANED
from fairlead_broker.log.documents import (
    Checkpoint,
    CleanMarker,
    CorruptDocument,
    Identity,
    PartitionCheckpoint,
    read_document,
    write_document,
)
from fairlead_broker.log.errors import (
    DirectoryLocked,
    IdentityMismatch,
    LogError,
    Shortage,
    StorageFailed,
    wrap_os_error,
)
from fairlead_broker.log.health import DirectoryHealth
from fairlead_broker.log.opening import open_log
from fairlead_broker.log.partition_log import PartitionLog
from fairlead_broker.log.reserve import SpaceReserve
from fairlead_broker.log.segments.segments import SegmentCache
from fairlead_broker.log.segments.storage import PosixStorage, Release, Storage, Volume, read_whole
from fairlead_broker.log.synced_offsets import SyncedOffsets

SYSTEM_FOLDER: Final = ".fairlead"
TAILS_FOLDER: Final = "tails"
"""Folder of the files with records that were cut from mirrors."""
_TAIL_FILE: Final = re.compile(r"([0-9]+)-([0-9]+)\.batches")
TAIL_READ_BYTES: Final = 4 << 20
STRAY_SUFFIX: Final = ".stray"
DELETED_SUFFIX: Final = "-deleted"
_GIVEN_UP: Final = re.compile(rf"[0-9]+\.[0-9]+{DELETED_SUFFIX}")
_TOPIC_FOLDER: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class LogDirectory:
    """A data directory that this process has locked."""

    def __init__(
        self, path: Path, storage: Storage, unlock: Release, broker_id: int, directory_id: str, clock: Clock
    ) -> None:
        """Create the object for `open`, which is the only caller."""
        self.path = path
        self.was_clean = False
        """Whether every byte was synced at the last stop."""
        self.corrupt: tuple[str, ...] = ()
        """Descriptions of the documents that were damaged when the broker started, one sentence each."""
        self.health = DirectoryHealth(SpaceReserve(storage, path / SYSTEM_FOLDER / "reserve"))
        self.volume: Volume = storage.open_volume(path)
        self._storage = storage
        self._unlock = unlock
        self._broker_id = broker_id
        self._new_directory_id = directory_id
        self._clock = clock
        self._identity: Identity | None = None
        self._cache = SegmentCache()
        self._checkpoint_lock = Lock()
        self._checkpointed: dict[TopicIdPartition, PartitionCheckpoint] = {}
        self._knows_checkpoint = False
        self._synced_offsets = SyncedOffsets(storage, path / SYSTEM_FOLDER / "synced")
        # Partitions that were dropped after the last checkpoint was written, so that the checkpoint still lists them.
        # The renamed folder of a dropped partition is kept until the next checkpoint is written, and no new folder is
        # created for that partition before then. If the folder were deleted or reused earlier, a starting broker would
        # mistake the missing records for damage.
        self._given_up: set[TopicIdPartition] = set()
        self.found: frozenset[TopicIdPartition] = frozenset()
        """Partitions that had a folder when the directory was opened."""
        # Found partitions whose files and names are durable, without folders that were renamed since.
        self._durable: set[TopicIdPartition] = set()
        self._open: dict[TopicIdPartition, PartitionLog] = {}

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        cluster_id: str | None,
        broker_id: int,
        clock: Clock,
        new_directory_id: str,
        storage: Storage | None = None,
        residence: str | None = None,
    ) -> LogDirectory:
        """Lock a directory, create it if it is missing, and read its documents.

        If `cluster_id` is None, a new directory belongs to no cluster until `adopt_cluster` is called.
        `new_directory_id` is used only for a new directory. `residence` names the kernel and volume that keep
        written bytes after the process exits. Raises `DirectoryLocked` (which names the process that holds the
        lock), `IdentityMismatch`, `CorruptDocument` if the identity is damaged (a damaged checkpoint does not
        prevent a start), `StorageFailed` or `Shortage`.
        """
        storage = storage or PosixStorage()
        try:
            system = path / SYSTEM_FOLDER
            if not storage.exists(system):
                storage.make_folder(path)
                storage.sync_folder(path.parent)
                storage.make_folder(system)
            # An existing folder is also synced: the process that created it may have been killed before the folder's
            # name was durable.
            storage.sync_folder(path)
            unlock = storage.lock(system / "lock", f"{os.getpid()}\n".encode())
            if unlock is None:
                holder = (read_whole(storage, system / "lock") or b"").decode(
                    errors="replace"
                ).strip() or "unknown"
                message = (
                    f"{path} is used by another process (pid {holder}); two brokers cannot share a directory"
                )
                raise DirectoryLocked(message)
            try:
                directory = cls(path, storage, unlock, broker_id, new_directory_id, clock)
                directory._start(cluster_id, residence)
            except BaseException:
                unlock()
                raise
        except FileExistsError as error:
            message = f"{path} is a file; the data directory must be a directory"
            raise StorageFailed(message) from error
        except OSError as error:
            raise wrap_os_error(error, f"{path}: cannot open the data directory") from error
        return directory

    # ------------------------------------------------------------------------------------------ identity

    @property
    def identity(self) -> Identity:
        """Broker and cluster of the directory."""
        assert self._identity is not None, f"{self.path} belongs to no cluster yet: adopt_cluster comes first"
        return self._identity

    @property
    def cluster_id(self) -> str | None:
        """Cluster that the directory belongs to, or None for a new directory."""
        return self._identity.cluster_id if self._identity else None

    @property
    def failure(self) -> StorageFailed | None:
        """First failed write or sync. After a failure, no file of the directory is written until a restart."""
        return self.health.failure

    def adopt_cluster(self, cluster_id: str) -> Identity:
        """Assign a new directory to a cluster. Raises `IdentityMismatch` for a directory of another cluster."""
        found = self._identity
        if found is None:
            found = Identity(
                cluster_id=cluster_id, broker_id=self._broker_id, directory_id=self._new_directory_id
            )
            # The checkpoint is written first, so that an identity file without a checkpoint file shows that the
            # checkpoint was lost.
            self.write_checkpoint()
            self._knows_checkpoint = True
            self._write_identity(found)
        if found.cluster_id != cluster_id:
            message = (
                f"{self.path} belongs to cluster {found.cluster_id}, but this broker belongs to cluster {cluster_id}: "
                "start the broker with its own data directory, or remove this directory if its data is not needed"
            )
            raise IdentityMismatch(message)
        return found

    def set_broker_epoch(
        self,
        epoch: BrokerEpoch,
        *,
        intact_since: BrokerEpoch | None = None,
        residence: str | None = None,
    ) -> None:
        """Durably store the broker's current incarnation, before the broker leads or fetches with the directory.

        `intact_since` and `residence` let the next start decide whether the directory still has every written
        byte.
        """
        self._write_identity(
            msgspec.structs.replace(
                self.identity, last_broker_epoch=epoch, intact_since=intact_since, residence=residence
            )
        )

    def quarantine(self, replicas: Collection[TopicIdPartition]) -> None:
        """Durably mark these replicas as untrusted."""
        kept = tuple(sorted({*self.identity.quarantined, *replicas}, key=str))
        self._write_identity(msgspec.structs.replace(self.identity, quarantined=kept))

    def forget_residence(self) -> None:
        """Remove the stored residence, so that the next start treats unsynced bytes as lost, as after a failed sync."""
        with suppress(LogError):
            self._write_identity(msgspec.structs.replace(self.identity, residence=None))

    # ------------------------------------------------------------------------------------------ partitions

    def open_partition(
        self, topic_id: TopicId, partition: PartitionIndex, config: TopicConfig
    ) -> PartitionLog:
        """Open the log of a partition, new or recovered. Several threads may open different partitions concurrently."""
        assert self._identity is not None, f"{self.path} belongs to no cluster yet: adopt_cluster comes first"
        key = TopicIdPartition(topic_id, partition)
        assert key not in self._open, f"{key} is already open"
        self._forget_given_up(key)
        folder = self._folder(key)
        log = open_log(
            self._storage,
            folder,
            config,
            self.health,
            self._cache,
            self._checkpointed.get(key) or self._fresh_entry(key),
            self._synced_offsets.entry(key),
            durable=key in self._durable,
        )
        # Later openings of the folder read files that this process has written, which need not be durable.
        self._durable.discard(key)
        log.on_offsets_moved(self.write_checkpoint)
        self._open[key] = log
        return log

    def give_up_partition(self, topic_id: TopicId, partition: PartitionIndex) -> Path | None:
        """Durably rename a partition's folder, so that no later start reads the folder, and return the new path.

        `remove_given_up` deletes the renamed folder later, so that the duration of this call does not depend on
        the number of files. Returns None if the partition does not exist.
        """
        key = TopicIdPartition(topic_id, partition)
        self._durable.discard(key)
        log = self._open.pop(key, None)
        if log is not None:
            log.close()
        self._drop_entry(key)
        folder = self._folder(key)
        gone = folder.with_name(f"{partition}.{self._clock.now_us()}{DELETED_SUFFIX}")
        try:
            if not self._storage.exists(folder):
                self._forget_given_up(key)
                self._remove_topic_folder_if_empty(folder.parent)
                return None
            self._storage.rename(folder, gone)
            self._storage.sync_folder(folder.parent)
        except OSError as error:
            raise wrap_os_error(error, f"{folder}: cannot delete") from error
        return gone

    def partitions_of(self, topic_id: TopicId) -> list[PartitionIndex]:
        """Return the partitions of a topic that have a folder, even while folders are being removed."""
        folder = self.path / topic_id
        try:
            names = self._storage.list_folders(folder)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise wrap_os_error(error, f"{folder}: cannot list") from error
        return sorted(PartitionIndex(int(name)) for name in names if _is_partition(name))

    def keep_tail(self, key: TopicIdPartition, log: PartitionLog, offset: Offset) -> Path | None:
        """Durably write a log's batches from an offset on to a file; return its path, or None if there are none.

        Only an operator may delete the file, since only this cluster has the records in the file (rule L20). The call
        blocks. Raises `LogError`.
        """
        end, at = log.end_offset, max(offset, log.log_start_offset)
        if at >= end:
            return None
        tails = self.path / SYSTEM_FOLDER / TAILS_FOLDER
        folder = tails / key.topic_id
        path = folder / f"{key.partition}-{offset}.batches"
        try:
            for each in (tails, folder):
                self._storage.make_folder(each)
                self._storage.sync_folder(each.parent)
            file = self._storage.open(path, create=True)
            file.truncate(0)
            position = 0
            while at < end:
                read = log.read(at, TAIL_READ_BYTES, end)
                file.write([read.data], position)
                position += len(read.data)
                at = Offset(read.next_offset)
            file.sync()
            self._storage.sync_folder(folder)
        except OSError as error:
            raise wrap_os_error(error, f"{path}: cannot write") from error
        return path

    def remove_given_up(self, folder: Path, *, for_good: bool = False) -> None:
        """Delete the files of a dropped partition. Other threads may open any partition during the call.

        `for_good`: the partition will never be opened again, because its topic is deleted. If `for_good` is set, the
        checkpoint on the disk may still list the partition, so that not every deletion writes a checkpoint.
        """
        try:
            self._remove_folder(folder, for_good=for_good)
            self._remove_topic_folder_if_empty(folder.parent)
        except OSError as error:
            raise wrap_os_error(error, f"{folder}: cannot delete") from error

    def forget_topics(self, deleted: Container[TopicId]) -> None:
        """Drop deleted topics from later checkpoints.

        A killed process may have removed the files of these topics before a checkpoint. A starting broker calls this
        method before it deletes the partitions of deleted topics.
        """
        for key in [key for key in self._checkpointed if key.topic_id in deleted]:
            self._drop_entry(key)

    def mark_strays(self, known: Container[TopicId]) -> list[Path]:
        """Rename folders of unknown topics to `.stray` and return all stray folders, which are never deleted."""
        strays = []
        try:
            for name in sorted(self._storage.list_folders(self.path)):
                folder = self.path / name
                if _TOPIC_FOLDER.fullmatch(name) and TopicId(name) not in known:
                    folder = self._free_name(folder.with_name(name + STRAY_SUFFIX))
                    self._storage.rename(self.path / name, folder)
                    self._durable = {key for key in self._durable if key.topic_id != name}
                if STRAY_SUFFIX in folder.name:
                    strays.append(folder)
            self._storage.sync_folder(self.path)
        except OSError as error:
            raise wrap_os_error(error, f"{self.path}: cannot move stray folders aside") from error
        return sorted(strays)

    # ------------------------------------------------------------------------------------------ checkpoint, stop

    def write_checkpoint(self) -> None:
        """Durably write the log start, high watermark and recovery point of every partition."""
        self.health.check()
        with self._checkpoint_lock, self.health:
            self._synced_offsets.sync_removals()
            for key, log in list(self._open.items()):
                self._checkpointed[key] = _entry(key, log)
            checkpoint = Checkpoint(partitions=tuple(self._checkpointed.values()))
            write_document(self._storage, self._system("checkpoint"), checkpoint)
            self._given_up.clear()

    def close(self, clean: bool) -> None:
        """Close all partitions and release the lock.

        If `clean` is set, the call first syncs all unsynced bytes, writes the checkpoint, and then writes the marker of
        a clean stop. Without the marker of a clean stop, the next start runs the recovery. Raises OSError if a log
        cannot be synced or closed; no marker is written in that case.
        """
        try:
            if clean:
                for log in self._open.values():
                    log.sync()
            for log in self._open.values():
                log.close()
            if clean:
                self.write_checkpoint()
                marker = CleanMarker(stopped_at_us=self._clock.now_us())
                write_document(self._storage, self._system("clean"), marker)
        finally:
            self._open.clear()
            self._unlock()

    # ------------------------------------------------------------------------------------------ inside

    def _start(self, cluster_id: str | None, residence: str | None) -> None:
        # A starting broker writes to the directory even if the disk is full, so the reserve is released.
        self.health.reserve.release()
        self._identity = read_document(self._storage, self._system("identity"), Identity)
        if self._identity is not None and self._identity.broker_id != self._broker_id:
            message = (
                f"{self.path} belongs to broker {self._identity.broker_id}, but this is broker {self._broker_id}: "
                "start the broker with its own data directory or its own id"
            )
            raise IdentityMismatch(message)
        if cluster_id is not None:
            self.adopt_cluster(cluster_id)
        clean = self._has_clean_marker()
        self._read_checkpoint()
        if not self._synced_offsets.open():
            self.corrupt += (f"{self._system('synced')}: the header is damaged",)
        self.was_clean = clean and not self.corrupt
        if self.was_clean:
            self._reside(residence)
        self._remove_clean_marker()
        self._finish_deletions()

    def _has_clean_marker(self) -> bool:
        try:
            return read_document(self._storage, self._system("clean"), CleanMarker) is not None
        except CorruptDocument as error:
            self.corrupt += (str(error),)
            return False

    def _reside(self, residence: str | None) -> None:
        """Store the kernel and volume that keep written bytes, while all bytes are synced and the clean marker exists.

        If the clean marker were removed first, a broker that is killed before it has registered would leave neither the
        marker nor the boot id of its kernel.
        """
        found = self._identity
        if found is not None and residence is not None and found.residence != residence:
            self._write_identity(msgspec.structs.replace(found, residence=residence))

    def _remove_clean_marker(self) -> None:
        """Durably remove the marker, so that a stop counts as unclean until the marker is written again."""
        path = self._system("clean")
        if self._storage.exists(path):
            self._storage.unlink(path)
            self._storage.sync_folder(path.parent)

    def _read_checkpoint(self) -> None:
        try:
            checkpoint = read_document(self._storage, self._system("checkpoint"), Checkpoint)
        except CorruptDocument as error:
            # Without a checkpoint, the recovery reads every partition from its first offset, which is slow but
            # correct.
            self.corrupt += (str(error),)
            return
        if checkpoint is None:
            if self._identity is not None:
                self.corrupt += (f"{self._system('checkpoint')}: the file is missing",)
            return
        self._knows_checkpoint = True
        for entry in checkpoint.partitions:
            self._checkpointed[TopicIdPartition(entry.topic_id, entry.partition)] = entry

    def _fresh_entry(self, key: TopicIdPartition) -> PartitionCheckpoint | None:
        """Return the entry of a partition created since the last checkpoint, or None if the checkpoint was lost."""
        if not self._knows_checkpoint:
            return None
        begin = Offset(0)
        return PartitionCheckpoint(
            topic_id=key.topic_id,
            partition=key.partition,
            log_start=begin,
            high_watermark=begin,
            recovery_point=begin,
        )

    def _finish_deletions(self) -> None:
        found = [
            (topic, name)
            for topic in self._storage.list_folders(self.path)
            if _TOPIC_FOLDER.fullmatch(topic)
            for name in self._storage.list_folders(self.path / topic)
        ]
        self.found = frozenset(
            TopicIdPartition(TopicId(topic), PartitionIndex(int(name)))
            for topic, name in found
            if _is_partition(name)
        )
        if found and self._all_durable():
            self._durable.update(self.found)
        given_up = [self.path / topic / name for topic, name in found if _GIVEN_UP.fullmatch(name)]
        # All checkpoint entries are removed before the first folder is deleted, so that a single checkpoint covers
        # all folders.
        for folder in given_up:
            key = _key_of(folder)
            if not self._storage.exists(self._folder(key)):
                self._drop_entry(key)
        for folder in given_up:
            # If the disk is full, the folder is kept until the next start.
            with suppress(Shortage):
                self._remove_folder(folder)

    def _all_durable(self) -> bool:
        """Return whether all files and names of the directory are durable; after an unclean stop, this needs a sync.

        A killed process may have created, truncated or removed files without a sync. The files and names that this
        start reads must be durable, so that the next start reads the same. One sync of the volume replaces several
        syncs for each partition.
        """
        if not self.was_clean:
            try:
                self.volume.sync()
            except OSError:
                # The sync of the volume may have failed because of another program's file. Each partition is synced
                # when it is opened.
                return False
        return True

    def _remove_folder(self, folder: Path, *, for_good: bool = False) -> None:
        for name in self._storage.list_files(folder):
            self._storage.unlink(folder / name)
        if not for_good:
            self._forget_given_up(_key_of(folder))
        self._storage.remove_folder(folder)

    def _drop_entry(self, key: TopicIdPartition) -> None:
        with self._checkpoint_lock:
            removed = self._synced_offsets.remove(key)
            if self._checkpointed.pop(key, None) is not None or removed:
                self._given_up.add(key)

    def _forget_given_up(self, key: TopicIdPartition) -> None:
        """Remove a dropped partition from the checkpoint, if the checkpoint still contains it."""
        if key in self._given_up:
            self.write_checkpoint()

    def _remove_topic_folder_if_empty(self, folder: Path) -> None:
        try:
            if self._storage.list_folders(folder) or self._storage.list_files(folder):
                return
            self._storage.remove_folder(folder)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.ENOENT):
                raise
            return  # The folder is not empty, or no longer exists.
        self._storage.sync_folder(folder.parent)

    def _free_name(self, path: Path) -> Path:
        """Return the path, or the first free path with a number appended."""
        number, free = 1, path
        while self._storage.exists(free):
            number += 1
            free = path.with_name(f"{path.name}.{number}")
        return free

    def _write_identity(self, identity: Identity) -> None:
        with self.health:
            write_document(self._storage, self._system("identity"), identity)
        self._identity = identity

    def _folder(self, key: TopicIdPartition) -> Path:
        return self.path / key.topic_id / str(key.partition)

    def _system(self, name: str) -> Path:
        return self.path / SYSTEM_FOLDER / name


@dataclass(frozen=True, slots=True)
class KeptTail:
    """File with records that were cut from a mirror."""

    key: TopicIdPartition
    first_offset: Offset
    size_bytes: int
    path: Path


def kept_tails(data: Path) -> list[KeptTail]:
    """Return the files of the records that were cut from mirrors, by topic id, partition and offset.

    The call blocks. Raises `OSError`.
    """
    found = []
    for path in (data / SYSTEM_FOLDER / TAILS_FOLDER).glob("*/*.batches"):
        if name := _TAIL_FILE.fullmatch(path.name):
            key = TopicIdPartition(TopicId(path.parent.name), PartitionIndex(int(name[1])))
            found.append(KeptTail(key, Offset(int(name[2])), path.stat().st_size, path))
    return sorted(found, key=lambda tail: (tail.key, tail.first_offset))


def _is_partition(name: str) -> bool:
    """Return whether a folder in a topic's folder has the name of a partition."""
    return name.isascii() and name.isdigit() and name == str(int(name))


def _key_of(folder: Path) -> TopicIdPartition:
    """Return the partition to which a dropped folder belonged."""
    return TopicIdPartition(TopicId(folder.parent.name), PartitionIndex(int(folder.name.partition(".")[0])))


def _entry(key: TopicIdPartition, log: PartitionLog) -> PartitionCheckpoint:
    return PartitionCheckpoint(
        topic_id=key.topic_id,
        partition=key.partition,
        log_start=log.log_start_offset,
        high_watermark=log.checkpoint_high_watermark,
        recovery_point=log.synced_offset,
        damaged=log.damaged,
        cleaning=None if log.cleaning == NEVER_CLEANED else log.cleaning,
        deleted_to=min(log.deleted_to, log.log_start_offset),
    )
