"""Stop a configuration that the legacy executor would serve wrongly, before anything starts."""

from __future__ import annotations

from vllm_ray_compat.executors import legacy_limits
from vllm_ray_compat.executors.repairs.repair import Mixin, RepairRefusalError


def refusing(limit: legacy_limits.Limit, name: str) -> type[Mixin]:
    """Return the class that raises :class:`RepairRefusalError` for what *limit* names.

    Args:
        limit: says what is wrong with a configuration.
        name: of the repair, for those who know better and want to leave it out.
    """

    class _Refusing(Mixin):
        def _init_executor(self) -> None:
            reason = limit(self.vllm_config)
            if reason is not None:
                raise RepairRefusalError(
                    legacy_limits.refusal([reason])
                    + f" To run it all the same, set RAYCOMPAT_REPAIRS=all,-{name}."
                )
            super()._init_executor()

    return _Refusing
