"""The pytest plugin (entry point ``pytest11``): ``pytest --ray-parity --parity-topology tp2``.

It is loaded into every pytest of the environment, so this module imports pytest alone and adds
nothing but its options; without ``--ray-parity`` nothing else of this package is imported.

PYTEST_DONT_REWRITE (there are no assertions in here, and rewriting a module takes time)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from vllm_ray_compat.parity.pytest_session import ParitySession

#: The first part of the node ids: ``ray-parity::tp2::greedy[v2]``.
ROOT = "ray-parity"
ENGINE_CORES = ("inproc", "process")

#: What a session needs of the extra ``cli``.
_NEEDED = ("pydantic", "psutil", "rich")

_KEY = "vllm_ray_compat_parity"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options. All but the first do nothing without it: an ini file may set them."""
    group = parser.getgroup(ROOT, "parity of vLLM's Ray executors (vllm-ray-compat)")
    group.addoption(
        "--ray-parity",
        action="store_true",
        help="add a test for each topology, workload and candidate; each topology's engines run "
        "once in the session",
    )
    group.addoption(
        "--parity-topology",
        action="append",
        metavar="TOPOLOGY",
        help="tpN, ppN or tpNppN; repeatable. Default: tp2 and pp2",
    )
    group.addoption("--parity-suite", metavar="SUITE", help="suite of workloads. Default: smoke")
    group.addoption(
        "--parity-requests",
        metavar="FILE",
        help="your own requests, not a suite: the JSON Lines that `vllm run-batch` reads",
    )
    group.addoption(
        "--parity-reference",
        metavar="BACKEND",
        help="legacy, v2, mp or module:Class. Default: legacy",
    )
    group.addoption(
        "--parity-candidate",
        action="append",
        metavar="BACKEND",
        help="as --parity-reference; repeatable. Default: v2, or legacy when the reference is v2",
    )
    group.addoption(
        "--parity-model",
        metavar="MODEL",
        help="'tiny', a folder, or a model in the local Hugging Face cache. Default: tiny",
    )
    group.addoption(
        "--parity-report-dir",
        metavar="DIR",
        help="where each topology's report, captures and logs are written, in a folder of its "
        "own. Default: pytest's temporary folder",
    )
    group.addoption(
        "--parity-engine-arg",
        action="append",
        metavar="NAME=VALUE",
        help="a vLLM engine argument for all arms; repeatable",
    )
    group.addoption(
        "--parity-engine-core",
        metavar="|".join(ENGINE_CORES),
        help="where the engine core runs. Default: inproc",
    )
    group.addoption(
        "--parity-ray-address",
        metavar="ADDRESS",
        help="use this Ray cluster instead of starting one for each topology",
    )
    group.addoption(
        "--parity-arm-timeout",
        type=float,
        metavar="SECONDS",
        help="after which an arm counts as hanging, for each engine it has. Default: 300",
    )
    group.addoption(
        "--parity-parallel",
        type=int,
        metavar="N",
        help="at most N topologies at once, with xdist (-n). Default: on GPUs as many as there are "
        "devices for, on the CPU one",
    )
    group.addoption(
        "--parity-tolerance",
        action="append",
        metavar="FIELD=ABS[,REL]|auto",
        help="tolerate differences of logprobs, cumulative_logprob or prompt_logprobs; repeatable. "
        "Default: the suite's, or none",
    )
    group.addoption(
        "--parity-trace",
        action="store_true",
        help="also record each step at the executor's boundary, to place a difference",
    )
    group.addoption(
        "--parity-no-forcing",
        action="store_true",
        help="after another token, do not run the candidate once more along the reference's tokens",
    )
    group.addoption(
        "--parity-inject-fault",
        metavar="KIND",
        help="alter the first candidate's capture on purpose; an item must fail",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Make the session, if it was asked for.

    Raises:
        pytest.UsageError: an option that cannot be, or a package that is missing.
    """
    if not config.getoption("ray_parity"):
        return
    config.addinivalue_line("markers", "ray_parity: made by --ray-parity (vllm-ray-compat)")
    try:
        from vllm_ray_compat.parity.pytest_session import ParitySession
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _NEEDED:
            raise
        raise pytest.UsageError(
            f"--ray-parity needs the package {error.name!r}, which is not installed. Install it: "
            "pip install 'vllm-ray-compat[cli]'"
        ) from None
    config.pluginmanager.register(ParitySession(config), _KEY)


# Here and not in the session's plugin: the order in which plugins were registered has hooks of a
# conftest.py called before this one, so that they see their own items alone, and -k and -m after.
def pytest_collection_modifyitems(
    session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Add the items of the session."""
    parity: ParitySession | None = config.pluginmanager.get_plugin(_KEY)
    if parity is not None:
        parity.add_items(session, items)
