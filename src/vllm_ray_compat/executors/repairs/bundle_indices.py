"""Mistakes in VLLM_RAY_BUNDLE_INDICES are found late, or place ranks wrongly without a word."""

from __future__ import annotations

from vllm_ray_compat.executors.repairs import placing
from vllm_ray_compat.executors.repairs.repair import Mixin, Repair
from vllm_ray_compat.schedule import Backend


class _Checked(Mixin):
    """The list is checked against the group before any worker starts."""

    def _init_executor(self) -> None:
        backend = placing.backend_of(self)
        module = placing.module_of(backend)
        listed = placing.listed_bundles(module)
        if not listed:
            super()._init_executor()
            return
        from vllm_ray_compat.executors import ray_cluster
        from vllm_ray_compat.executors.actors import device_key
        from vllm_ray_compat.executors.placement import parse_bundle_indices

        parse_bundle_indices(listed)  # before a group is made for what is no list

        def check() -> None:
            config = self.parallel_config
            ray_cluster.place_ranks(
                config.placement_group, config, device_key(), backend, by_hand=listed
            )

        with placing.once_there_is_a_group(module, check):
            super()._init_executor()


REPAIR = Repair(
    name="bundle-indices",
    defects=(),
    backends=frozenset({Backend.V2, Backend.LEGACY}),
    since="0.15.0",
    fixed_in=None,
    reports=("https://github.com/ray-project/ray/issues/63945",),
    symptom=(
        "A wrong VLLM_RAY_BUNDLE_INDICES ends in a bare AssertionError, ValueError or KeyError, or "
        "in workers that Ray never places."
    ),
    effect=(
        "Everything that is wrong with it is said in one error, before any worker starts. A "
        "tensor-parallel group that it splits over nodes is named in a warning."
    ),
    executor=_Checked,
)
