"""Leases: one owner a cell; a dead owner's is taken over, judged on the taker's own clock."""

import os
import shutil

import pytest

from rr.sweep.leases import Leases


class Clock:
    """A monotonic clock that a test moves."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def two(tmp_path):
    """Two sweeps on one folder, the clock of the second, and what they said."""
    clock, said = Clock(), []
    first = Leases(tmp_path, "a", said.append, beat=1.0, looks=3, clock=Clock())
    second = Leases(tmp_path, "b", said.append, beat=1.0, looks=3, clock=clock)
    return first, second, clock, said


def watch(leases, clock, looks, step=1.0):
    """Look at the cell `looks` times; the lease, if it was taken."""
    for _ in range(looks):
        clock.now += step
        if (lease := leases.acquire("cell")) is not None:
            return lease
    return None


def test_a_cell_has_one_owner(two):
    first, second, clock, _ = two
    lease = first.acquire("cell")
    for _ in range(20):  # looked at ten times longer than a dead owner would be given
        assert lease.renew()
        assert watch(second, clock, 1) is None
    lease.release()
    assert second.acquire("cell") is not None


def test_a_dead_owners_lease_is_taken_over(two):
    first, second, clock, said = two
    dead = first.acquire("cell")
    assert watch(second, clock, 3) is None  # the first look knows nothing, then 2 without a change
    assert second.acquire("cell") is None  # no look: the clock has not moved
    taken = watch(second, clock, 1)
    assert taken is not None and said == ["cell: its lease was not renewed for 3 s; taken over"]
    # the owner was only asleep: it sees that the lease is gone, and takes nothing back
    assert not dead.renew() and taken.renew() and not dead.renew()
    dead.release()
    assert taken.renew()


def test_a_watcher_that_slept_has_not_looked(two):
    first, second, clock, _ = two
    first.acquire("cell")
    assert watch(second, clock, 1) is None
    clock.now += 3600  # stopped for an hour, or its clock jumped
    assert second.acquire("cell") is None
    assert second.acquire("cell") is None


def test_the_wall_clock_says_nothing(two, tmp_path):
    first, second, clock, _ = two
    lease = first.acquire("cell")
    for age in (-1e9, 1e9):
        os.utime(lease.path, (2e9 + age, 2e9 + age))
        assert watch(second, clock, 2) is None
        assert lease.renew()


def truncated(path):
    os.truncate(path, 3)


def zeroed(path):
    path.write_bytes(bytes(path.stat().st_size))


def emptied(path):
    os.truncate(path, 0)


def flipped(path):
    data = bytearray(path.read_bytes())
    data[5] ^= 1
    path.write_bytes(data)


def folder(path):
    path.unlink()
    (path / "in it").mkdir(parents=True)


@pytest.mark.parametrize("damage", [truncated, zeroed, emptied, flipped, folder])
def test_a_corrupt_lease_expires(two, damage):
    first, second, clock, _ = two
    damage(first.acquire("cell").path)
    assert watch(second, clock, 3) is None
    taken = watch(second, clock, 1)
    assert taken is not None and taken.renew()
    assert [p.name for p in taken.path.parent.iterdir()] == ["cell"]  # nothing is left over


@pytest.mark.parametrize("damage", [truncated, zeroed, emptied, flipped])
def test_a_living_owner_mends_its_lease(two, damage):
    first, second, clock, _ = two
    lease = first.acquire("cell")
    for _ in range(6):
        assert watch(second, clock, 1) is None
        damage(lease.path)
        assert lease.renew()


def test_of_two_takers_one_wins(two, tmp_path):
    first, second, clock, said = two
    first.acquire("cell")
    other = Clock()
    third = Leases(tmp_path, "c", said.append, beat=1.0, looks=3, clock=other)
    for _ in range(3):
        clock.now += 1.0
        other.now += 1.0
        assert second.acquire("cell") is None and third.acquire("cell") is None
    clock.now += 1.0
    other.now += 1.0
    winner, loser = second.acquire("cell"), third.acquire("cell")
    assert winner is not None and loser is None
    # and where the loser had read the dead lease before the winner moved it:
    seen = b"what stood there before"
    assert not third.remove_expired(winner.path, seen)
    assert winner.renew()  # put back


def test_leases_that_vanish_are_lost_not_fought_for(two):
    first, _, _, _ = two
    lease = first.acquire("cell")
    shutil.rmtree(lease.path.parent)
    assert not lease.renew()
    lease.release()
