"""
What ranks that take one decision tell each other.

They make the same exchanges in the same order, since they compile the same program.
"""

from __future__ import annotations

import contextlib
import dataclasses
import pickle
import socket
import weakref
from typing import Any, TYPE_CHECKING, TypeVar

import torch.distributed as dist

from ..times import Failure, failure_of


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from .numerics import Comparison

    Ranks = tuple[int, ...]

T = TypeVar("T")


def as_on_first_rank(value: Any, ranks: Ranks) -> Any:
    """The first rank's value, for what ranks may see in different ways."""
    return gather(value, ranks)[0]


def common_to_all_ranks(indices: Iterable[int], ranks: Ranks) -> list[int]:
    """The indices that every one of the ranks has."""
    gathered = gather(sorted(indices), ranks)
    return sorted(set(gathered[0]).intersection(*gathered[1:]))


def is_same_on_all_ranks(value: Any, ranks: Ranks) -> bool:
    """Whether every one of the ranks has an equal value."""
    first, *others = gather(value, ranks)
    return all(other == first for other in others)


def common_comparisons(
    mine: Mapping[int, Comparison], ranks: Ranks
) -> dict[int, Comparison]:
    """
    How candidates' results differ from the op's, on any of the ranks.

    Args:
        mine: by index; the same indices on every rank.

    Returns:
        The same on every rank; who was not compared on one was not compared.
    """
    of_ranks = [*zip(ranks, gather(dict(mine), ranks))]
    found: dict[int, Comparison] = {}
    for index in mine:
        results = [(rank, theirs[index]) for rank, theirs in of_ranks]
        wrong = [f"on rank {rank}: {r}" for rank, r in results if isinstance(r, str)]
        missing = [
            r.of(f"on rank {rank}") for rank, r in results if isinstance(r, Failure)
        ]
        found[index] = next(iter((*wrong, *missing)), None)
    return found


def known_to_all_ranks(mine: Any, ranks: Ranks) -> Any:
    """The first rank's value if every rank has one, else None."""
    of_ranks = gather(mine, ranks)
    return None if None in of_ranks else of_ranks[0]


def of_all_ranks(mine: T | Failure, ranks: Ranks) -> list[T] | Failure:
    """What each rank has, or the failure of the first that has one."""
    of_ranks = gather(mine, ranks)
    for rank, result in zip(ranks, of_ranks):
        if isinstance(result, Failure):
            return result.of(f"on rank {rank}")
    return of_ranks


def made_on_all_ranks(make: Callable[[], T], ranks: Ranks) -> T | Failure:
    """
    What a rank makes for itself, without a collective; a failure if any rank fails to.

    Args:
        make: what it makes stays on this rank.
    """
    try:
        made: T | Failure = make()
    except Exception as e:  # the others wait for what comes of it
        made = failure_of(e)
    of_ranks = of_all_ranks(made if isinstance(made, Failure) else None, ranks)
    return of_ranks if isinstance(of_ranks, Failure) else made


def topology(ranks: Ranks) -> tuple[int, ...]:
    """For each of the ranks the first one on the same host; the same on every rank."""
    exchanges = _exchanges_of(ranks)
    if exchanges.hosts is None:
        exchanges.hosts = gather(socket.gethostname(), ranks)
    hosts = exchanges.hosts
    return tuple(ranks[hosts.index(host)] for host in hosts)


@dataclasses.dataclass
class _Exchanges:
    """
    What ranks have exchanged with each other.

    Args:
        prefix: of their keys in the default group's store.
        number: how many there were.
        last_key: this rank's of the last one, which is still in the store.
    """

    prefix: str
    number: int = 0
    last_key: str | None = None
    hosts: list[str] | None = None


# By the default group: where that is formed anew, with a peer that has begun anew, too, all
# count from zero.
_exchanges: weakref.WeakKeyDictionary[Any, dict[Ranks, _Exchanges]] = (
    weakref.WeakKeyDictionary()
)


def _exchanges_of(ranks: Ranks) -> _Exchanges:
    """Those since the default group was formed; its store may be that of one before."""
    known = _exchanges.setdefault(dist.distributed_c10d._get_default_group(), {})
    if ranks not in known:
        prefix = f"custom_op_autotuning/{','.join(map(str, ranks))}"
        store = dist.distributed_c10d._get_default_store()
        times_formed = (store.add(f"{prefix}/members", 1) - 1) // len(ranks)
        known[ranks] = _Exchanges(f"{prefix}/{times_formed}")
    return known[ranks]


def gather(value: Any, ranks: Ranks) -> list[Any]:
    """
    One value from each of the ranks, in their order.

    They travel through the default group's store: no device is needed, and no collective
    of the model is between them.

    Raises:
        RuntimeError: if a rank does not take part within the group's timeout.
    """
    store = dist.distributed_c10d._get_default_store()
    exchanges = _exchanges_of(ranks)
    prefix = f"{exchanges.prefix}/{exchanges.number}"
    exchanges.number += 1
    key = f"{prefix}/{dist.get_rank()}"
    store.set(key, pickle.dumps(value).hex())
    keys = [f"{prefix}/{rank}" for rank in ranks]
    try:
        store.wait(keys)
    except RuntimeError as e:
        late = [rank for rank, key in zip(ranks, keys) if not store.check([key])]
        raise RuntimeError(
            f"Ranks {late} do not take part in tuning custom ops with collectives. "
            "All ranks must compile the same program, within the timeout of the "
            "process group"
        ) from e
    # All ranks have begun this exchange, so they have read the values of the last one.
    if exchanges.last_key is not None:
        with contextlib.suppress(RuntimeError):  # not every store can
            store.delete_key(exchanges.last_key)
    exchanges.last_key = key
    return [pickle.loads(bytes.fromhex(store.get(key).decode())) for key in keys]
