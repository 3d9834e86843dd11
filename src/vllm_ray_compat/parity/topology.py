"""Topologies: how many tensor parallel and pipeline parallel ranks an arm has."""

from __future__ import annotations

import re
from dataclasses import dataclass

from vllm_ray_compat.errors import UsageError

_PATTERN = re.compile(r"(?:tp([1-9]\d*))?(?:pp([1-9]\d*))?")


class TopologyError(UsageError):
    """A topology that does not exist, or that a model cannot be split into."""


@dataclass(frozen=True)
class Topology:
    """Tensor parallel size and pipeline parallel size; the world size is their product."""

    tp: int = 1
    pp: int = 1

    @property
    def world_size(self) -> int:
        """The number of workers, and of devices."""
        return self.tp * self.pp

    def __str__(self) -> str:
        parts = [f"tp{self.tp}" if self.tp > 1 or self.pp == 1 else ""]
        parts.append(f"pp{self.pp}" if self.pp > 1 else "")
        return "".join(parts)

    def check(self, heads: int, layers: int, model: str) -> None:
        """Check that a model can be split this way.

        Args:
            heads: attention heads, shared out among the tensor parallel ranks.
            layers: transformer layers, shared out among the pipeline stages.
            model: its name, for the message.

        Raises:
            TopologyError: heads do not divide, or there are fewer layers than stages.
        """
        if heads % self.tp:
            fits = ", ".join(f"tp{n}" for n in range(1, heads + 1) if heads % n == 0)
            raise TopologyError(
                f"Topology {self} does not fit model {model!r}: its {heads} attention heads do "
                f"not divide by tensor parallel size {self.tp}. It can be split into {fits}."
            )
        if layers < self.pp:
            raise TopologyError(
                f"Topology {self} does not fit model {model!r}: {self.pp} pipeline stages need "
                f"at least as many layers, and it has {layers}. Choose at most pp{layers}."
            )


def parse_topology(text: str) -> Topology:
    """Parse ``tp2``, ``pp2`` or ``tp2pp2``.

    Raises:
        TopologyError: *text* is none of these.
    """
    match = _PATTERN.fullmatch(text.strip().lower())
    if match is None or not any(match.groups()):
        raise TopologyError(
            f"Unknown topology {text!r}. Write the sizes as tpN, ppN or tpNppN, for example "
            "tp2, pp2 or tp2pp2."
        )
    return Topology(int(match.group(1) or 1), int(match.group(2) or 1))
