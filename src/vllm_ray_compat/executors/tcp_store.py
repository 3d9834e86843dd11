"""The store of ``torch.distributed`` on a port that nobody else can take."""

from __future__ import annotations

import ray
from torch.distributed import TCPStore


def open_store(world_size: int) -> tuple[TCPStore, str]:
    """Bind a store on this node, for rank 0 to call in its own process.

    The kernel chooses the port and it is never let go of, so that nobody can take it between
    choice and use (defect V2-11). ``init_process_group`` finds the store in this process and
    uses it, as long as the caller keeps it.

    Returns:
        The store, and the init method with which all ranks reach it, ``tcp://host:port``.
    """
    host = ray.util.get_node_ip_address()
    store = TCPStore(
        host_name=host,
        port=0,
        world_size=world_size,
        is_master=True,
        wait_for_workers=False,
        multi_tenant=True,
    )
    return store, f"tcp://{f'[{host}]' if ':' in host else host}:{store.port}"
