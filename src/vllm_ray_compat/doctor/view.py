"""A Ray cluster as it was seen at one moment: plain data, so that checks on it need no Ray."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

#: Resources that are a device, in the order in which they are looked for.
DEVICE_KEYS = ("GPU", "NPU", "TPU", "HPU", "XPU")


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True)


class Node(_Data):
    """A node: its id and address as Ray knows them, and its resources; ``free`` None: not told."""

    id: str
    address: str
    host: str = ""
    alive: bool = True
    total: dict[str, float] = {}
    free: dict[str, float] | None = None

    def __str__(self) -> str:
        return f"{self.address} (node {self.id[:8]})"


class BundleSeen(_Data):
    """A bundle of a placement group; without a node while it waits for one."""

    index: int
    resources: dict[str, float]
    node_id: str | None = None


class GroupSeen(_Data):
    """A placement group; ``state`` as Ray names it (CREATED, PENDING, …)."""

    id: str
    name: str = ""
    state: str
    strategy: str = "PACK"
    bundles: tuple[BundleSeen, ...] = ()

    def __str__(self) -> str:
        return f"placement group {self.name or self.id[:12]}"


class HolderSeen(_Data):
    """A placement group or an actor outside of one: what, whose, and node id -> what it holds."""

    what: str
    who: str
    amounts: dict[str, dict[str, float]]


class View(_Data):
    """Nodes and placement groups; ``driver_node`` is the id of the node we looked from."""

    address: str
    ray: str
    driver_node: str
    nodes: tuple[Node, ...]
    groups: tuple[GroupSeen, ...] = ()
    holders: tuple[HolderSeen, ...] = ()

    @property
    def alive(self) -> list[Node]:
        """The living nodes, the driver's first, then by address."""
        living = [node for node in self.nodes if node.alive]
        return sorted(living, key=lambda n: (n.id != self.driver_node, n.address, n.id))

    @property
    def driver(self) -> Node | None:
        """The driver's node."""
        return next((node for node in self.nodes if node.id == self.driver_node), None)

    @property
    def device_key(self) -> str:
        """The resource that is a device in this cluster; GPU where there is none."""
        present = {key for node in self.alive for key in node.total}
        return next((key for key in DEVICE_KEYS if key in present), DEVICE_KEYS[0])

    def node(self, node_id: str) -> Node:
        """Return the node of that id, made up if Ray has forgotten it."""
        for node in self.nodes:
            if node.id == node_id:
                return node
        return Node(id=node_id, address="unknown address", alive=False)


class Facts(_Data):
    """What a process on a node told of it; with ``error`` it could not.

    Attributes:
        versions: distribution -> release, of those installed there; ``python`` too.
        niceness: of Ray's workers there.
        cores: that such a worker may use.
        host_name_address: where the node's host name leads to, or None.
        gloo_interface: ``GLOO_SOCKET_IFNAME`` there.
        port_range: the ephemeral ports of its kernel.
        listens: the address and port it listens on for the others.
    """

    node_id: str
    error: str | None = None
    versions: dict[str, str] = {}
    niceness: int | None = None
    cores: int | None = None
    host_name: str = ""
    host_name_address: str | None = None
    gloo_interface: str | None = None
    port_range: str | None = None
    listens: tuple[str, int] | None = None


class Connection(_Data):
    """A try to connect from one node to an ephemeral port of another; ``error`` None: it worked."""

    source: str
    target: str
    address: str
    port: int
    error: str | None = None
