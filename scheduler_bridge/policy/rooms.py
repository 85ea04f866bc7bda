"""Where a gang finds room. Whole gangs or nothing, in one cluster; small work fills broken machines and
broken racks, a gang takes the fewest racks, so that large holes stay."""

from __future__ import annotations

import numpy as np

from scheduler_bridge.policy.columns import Bools, Ints, Pools, Takes
from scheduler_bridge.policy.demands import is_exact, is_like, lacking, needs_these
from scheduler_bridge.policy.values import Pending


def eligible(pools: Pools, item: Pending) -> Bools:
    """The pools, ready or not, that are large enough and what the workload may run on: shape
    (pools,)."""
    exact = is_exact(item.demands)
    found = np.ones(len(pools), np.bool_) if exact else pools.size >= item.gpus
    if item.clusters:
        found &= np.array([name in item.clusters for name in pools.cluster_of], np.bool_)
    if item.models and item.gpus:
        found &= np.array([model in item.models for model in pools.models], np.bool_)
    if item.demands:
        found &= _meeting(pools, item)
    return found


def _meeting(pools: Pools, item: Pending) -> Bools:
    lacks = {node.name: bool(lacking(item.demands, item.gpus, node)) for node in pools.nodes}
    exact = is_exact(item.demands)
    wanted = [] if exact else needs_these(item.demands, item.gpus)
    return np.array(
        [
            not lacks[node.name]
            and (not wanted or not gpus or all(is_like(node, gpus[0], *each) for each in wanted))
            for node, gpus in zip(pools.state_of, pools.devices, strict=True)
        ],
        np.bool_,
    )


def could_hold(pools: Pools, item: Pending, within: Bools) -> bool:
    """Whether one cluster is large enough for the whole gang when it is empty."""
    if is_exact(item.demands):
        return bool(within.any())
    clusters = pools.cluster[_one_per_node(pools, within & (pools.size >= item.gpus))]
    return bool(clusters.size) and int(np.bincount(clusters).max()) >= item.nodes


def room(pools: Pools, item: Pending, available: Ints, within: Bools) -> Takes | None:
    """Where the gang goes if `available` GPUs of each pool may be used, or None."""
    fits = within & pools.ready & (available >= item.gpus)
    found = np.flatnonzero(fits)
    if found.size < item.nodes:
        return None
    if item.nodes == 1:
        return ((int(_tightest(pools, available, found)[0]), item.gpus),)
    chosen = _together(pools, item.nodes, available, _one_per_node(pools, fits))
    return None if chosen is None else tuple((int(pool), item.gpus) for pool in chosen)


def _tightest(pools: Pools, available: Ints, found: Ints) -> Ints:
    """Least spare first; among equals in the rack that is broken most; then as listed."""
    spare = available[found]
    ties: Ints = found[spare == spare.min()]
    if ties.size > 1:
        in_rack = np.bincount(pools.rack, np.maximum(available, 0))[pools.rack[ties]]
        return np.asarray(ties[np.argsort(in_rack, kind="stable")])
    return ties


def _one_per_node(pools: Pools, fits: Bools) -> Ints:
    """Machines of a gang are different ones: one pool of each."""
    found = np.flatnonzero(fits)
    if not any(pools.is_mixed):
        return found
    seen: dict[str, int] = {}
    for pool in found:
        seen.setdefault(pools.node_of[pool], int(pool))
    return np.array(list(seen.values()), np.int64)


def _together(pools: Pools, nodes: int, available: Ints, found: Ints) -> Ints | None:
    counts = np.bincount(pools.cluster[found]) if found.size else np.zeros(1, np.int64)
    enough = np.flatnonzero(counts >= nodes)
    if not enough.size:
        return None
    cluster = enough[np.argmin(counts[enough])]
    found = found[pools.cluster[found] == cluster]
    in_rack = np.bincount(pools.rack[found])[pools.rack[found]]
    # The smallest rack that holds all of it, or else the largest ones, one after the other.
    whole = in_rack >= nodes
    first = np.where(whole, in_rack, np.iinfo(np.int64).max - in_rack)
    order = np.lexsort((found, available[found], pools.rack[found], first))
    together: Ints = found[order[:nodes]]
    return together
