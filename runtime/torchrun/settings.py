"""What torchrun says of a rendezvous, as our handlers want it: pure."""

from __future__ import annotations

from collections.abc import Mapping

from runtime.rendezvous.parameters import RendezvousParameters, back_end_of


def parameters_of(
    endpoint: str, run_id: str, min_nodes: int, max_nodes: int, local_addr: str | None, config: Mapping[str, object]
) -> RendezvousParameters:
    """Ours. Raises ValueError for what cannot be met; unknown options are refused when a handler is made."""
    if not endpoint:
        raise ValueError("--rdzv-endpoint is missing: HOST:PORT of a node of the cluster, an etcd:// address, or a shared directory")
    # Torch adds a timeout of its own, which is another name of this one, to whatever was said.
    kept = {key: value for key, value in config.items() if key != "timeout" or "join_timeout" not in config}
    return RendezvousParameters(back_end_of(endpoint), endpoint, run_id, min_nodes, max_nodes, local_addr, **kept)
