"""A pytest session with ``--ray-parity``: its options, its items, their verdicts, its summary.

Imported by :mod:`~vllm_ray_compat.parity.pytest_plugin` only when the option is given.
"""

from __future__ import annotations

import os
import signal
import tempfile
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from vllm_ray_compat.errors import RaycompatError, UsageError, unknown
from vllm_ray_compat.parity import plan as planning
from vllm_ray_compat.parity.interrupt import InterruptedRunError
from vllm_ray_compat.parity.pytest_items import ParityError, ParityItem, make_group, node_id
from vllm_ray_compat.parity.pytest_plugin import ENGINE_CORES, ROOT
from vllm_ray_compat.parity.report.data import Arm, Report
from vllm_ray_compat.parity.shared_runs import Outcome, SharedRuns
from vllm_ray_compat.parity.sides import resolve
from vllm_ray_compat.parity.topology import parse_topology
from vllm_ray_compat.parity.workload_verdict import WorkloadVerdict, judge
from vllm_ray_compat.parity.workloads import load_suite
from vllm_ray_compat.parity.workloads.batch_file import load_requests
from vllm_ray_compat.schedule import Backend

#: What a worker of xdist is told by the process that started it.
_SHARED = "vllm_ray_compat"


#: What the summary says of workloads that are neither identical nor failures.
_ALSO_TOLD = {
    "within tolerance": "within tolerance",
    "known": "different as declared",
    "skipped": "not run",
}


class ParitySession:
    """What one process of the session holds; with xdist each worker has one, and the controller.

    Raises:
        pytest.UsageError: an option that cannot be (on construction).
    """

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._reports: dict[str, Report] = {}
        #: Topology and candidate -> what its workloads came to.
        self._summary: dict[tuple[str, str], list[str]] = {}
        #: Workload -> why it was left out.
        self._not_run: dict[str, str] = {}
        #: Node ids of ours among the arguments, which pytest would take for paths.
        self._selected = [text for text in config.args if _is_ours(text)]
        if self._selected:
            config.args[:] = [text for text in config.args if not _is_ours(text)]
        try:
            mine = self._option("requests", None)
            self._requests: Path | None = None if mine is None else self._from_here(mine)
            self.suite = (
                load_suite(self._option("suite", "smoke"))
                if self._requests is None
                else load_requests(self._requests)
            )
            self.topologies = list(
                dict.fromkeys(
                    str(parse_topology(t)) for t in self._option("topology", ["tp2", "pp2"])
                )
            )
            self.reference: str = self._option("reference", Backend.LEGACY.value)
            default = Backend.LEGACY if self.reference == Backend.V2.value else Backend.V2
            given = self._option("candidate", [default.value])
            self.candidates = {text: resolve(text).name for text in given}
            self._engine_args = planning.parse_engine_args(self._option("engine_arg", []))
            self._check_numbers()
            self._check_selection()
        except RaycompatError as error:
            raise pytest.UsageError(str(error)) from None

    def _option(self, name: str, default: Any) -> Any:
        value = self._config.getoption(f"parity_{name}")
        return default if value is None else value

    def _from_here(self, path: str) -> Path:
        """Return a path as the user means it: from where pytest was called."""
        return self._config.invocation_params.dir / path

    def _check_numbers(self) -> None:
        if self._option("arm_timeout", 300.0) < 1:
            raise UsageError("--parity-arm-timeout is in seconds, 1 or more.")
        if self._option("parallel", 1) < 1:
            raise UsageError("--parity-parallel is a number of runs at once, 1 or more.")
        core = self._option("engine_core", ENGINE_CORES[0])
        if core not in ENGINE_CORES:
            raise unknown("engine core", core, ENGINE_CORES)
        if not str(self._option("report_dir", "x")).strip():
            raise UsageError("--parity-report-dir is empty. Name a folder.")

    # -- where ---------------------------------------------------------------------------------

    @cached_property
    def folder(self) -> Path:
        """Of this session alone, and shared by its processes: locks, outcomes, and reports."""
        told = getattr(self._config, "workerinput", {}).get(_SHARED)
        if told is not None:
            return Path(told)
        # Where tmp_path is, so that pytest keeps it for the last sessions and removes older ones.
        factory = getattr(self._config, "_tmp_path_factory", None)
        if factory is not None:
            return Path(factory.getbasetemp()) / ROOT
        return Path(tempfile.mkdtemp(prefix="raycompat-pytest-"))  # -p no:tmpdir

    @cached_property
    def _runs(self) -> SharedRuns:
        environ = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
        who = getattr(self._config, "workerinput", {}).get("workerid", "pytest")
        return SharedRuns(
            self.folder,
            self._options_of,
            f"pytest worker {who}",
            self._option("parallel", None),
            environ,
        )

    def _options_of(self, topology: str) -> planning.Options:
        given = self._option("report_dir", None)
        above = self.folder if given is None else self._from_here(given)
        core = self._option("engine_core", ENGINE_CORES[0])
        return planning.Options(
            model=self._option("model", "tiny"),
            topologies=(topology,),
            reference=self.reference,
            candidates=tuple(self.candidates),
            suite=self._option("suite", "smoke"),
            requests=self._requests,
            report_dir=above / topology,
            ray_address=self._option("ray_address", None),
            arm_timeout_s=self._option("arm_timeout", 300.0),
            inject_fault=self._option("inject_fault", None),
            tolerances=tuple(self._option("tolerance", ())),
            trace=self._option("trace", False),
            forcing=not self._option("no_forcing", False),
            engine_core="inproc" if core == "inproc" else "process",
            engine_args=self._engine_args,
        )

    # -- hooks (registered as a plugin; what is not here is in pytest_plugin) --------------------

    def pytest_sessionstart(self) -> None:
        """Find what is wrong before anything is collected; workers are started after this."""
        if hasattr(self._config, "workerinput"):
            return
        try:
            for topology in self.topologies:
                checked = planning.plan(self._options_of(topology))
                if not self._config.option.collectonly:
                    _make(checked.options.report_dir)
        except RaycompatError as error:
            raise pytest.UsageError(str(error)) from None

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Tell a worker of xdist where the session's folder is."""
        node.workerinput[_SHARED] = str(self.folder)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note how an item of ours ended, for the summary."""
        if report.when == "call" and report.nodeid.startswith(f"{ROOT}::"):
            told = {str(name): str(value) for name, value in report.user_properties}
            # Not of what pytest-rerunfailures tries again: "rerun".
            if report.outcome in ("passed", "failed", "skipped") and "topology" in told:
                key = (told["topology"], told["candidate"])
                result = told.get("result", "") if report.outcome == "passed" else report.outcome
                self._summary.setdefault(key, []).append(result)
                if "not_run" in told:
                    self._not_run[told["workload"]] = told["not_run"]

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Say how each topology went, and where its report is."""
        if not self._summary:
            return
        terminalreporter.section("ray parity")
        for (topology, candidate), results in self._summary.items():
            told = [f"{results.count('equal')} of {len(results)} workloads identical"]
            for result, words in _ALSO_TOLD.items():
                if result in results:
                    told.append(f"{results.count(result)} {words}")
            terminalreporter.write_line(
                f"{topology} {self.reference} vs {candidate}: {', '.join(told)}; "
                f"{self._options_of(topology).report_dir}"
            )
        for workload, why in self._not_run.items():
            terminalreporter.write_line(f"not run: {workload}: {why}")

    # -- items ---------------------------------------------------------------------------------

    def add_items(self, session: pytest.Session, items: list[pytest.Item]) -> None:
        """Add the items of the session to what pytest has collected."""
        group = make_group(session, self, self._is_selected)
        items.extend(session.genitems(group))  # as a collection, so that they are counted

    def _is_selected(self, nodeid: str) -> bool:
        return not self._selected or any(_is_named(nodeid, text) for text in self._selected)

    def _check_selection(self) -> None:
        all_ids = [
            node_id(topology, workload.name, short)
            for topology in self.topologies
            for workload in self.suite.workloads
            for short in self.candidates.values()
        ]
        for text in self._selected:
            if not any(_is_named(nodeid, text) for nodeid in all_ids):
                raise UsageError(f"There is no item {text}. There are: {', '.join(all_ids)}.")

    def judge(self, item: ParityItem) -> None:
        """Judge *item*; run the arms of its topology first if nobody has.

        Raises:
            ParityError: it does not hold.
        """
        self._describe(item, suite=self.suite.name, reference=self.reference)
        self._skip_not_run(item)
        outcome = self._outcome(item)
        if outcome.report is None:
            raise ParityError(self._no_report(item, outcome))
        report = self._report(outcome.report)
        verdict = judge(
            report,
            item.topology,
            next(w for w in self.suite.workloads if w.name == item.workload),
            resolve(self.reference).name,
            self.candidates[item.candidate],
        )
        self._describe(
            item, verdict=verdict.verdict, result=verdict.state, report=str(outcome.report)
        )
        self._describe_arms(item, report)
        if verdict.verdict != "pass":
            raise ParityError(self._text(item, verdict, outcome.report))

    def _skip_not_run(self, item: ParityItem) -> None:
        """Skip what the run leaves out, and say why."""
        try:
            one = self._runs.plan(item.topology).not_run.get(item.workload)
        except RaycompatError:
            return  # told by the outcome of the run
        if one is not None:
            why = f"{one.state}: {one.told}"
            self._describe(item, not_run=why)
            pytest.skip(why)

    def _outcome(self, item: ParityItem) -> Outcome:
        wanted = dict.fromkeys(i.topology for i in item.session.items if isinstance(i, ParityItem))
        others = [topology for topology in wanted if topology != item.topology]
        try:
            return self._runs.outcome(item.topology, others)
        except InterruptedRunError as error:
            if error.signum == signal.SIGINT:
                raise KeyboardInterrupt from None
            raise pytest.exit.Exception(
                f"ended by {signal.Signals(error.signum).name}; no arm is left running",
                128 + error.signum,
            ) from None

    def _report(self, path: Path) -> Report:
        key = str(path)
        if key not in self._reports:
            self._reports[key] = Report.model_validate_json(path.read_text(encoding="utf-8"))
        return self._reports[key]

    def _describe(self, item: ParityItem, **more: str) -> None:
        """Add properties, which JUnit files show."""
        if not item.user_properties:
            more = {
                "topology": item.topology,
                "workload": item.workload,
                "candidate": item.candidate,
                **more,
            }
        item.user_properties += list(more.items())

    def _describe_arms(self, item: ParityItem, report: Report) -> None:
        here = [arm for arm in report.arms if arm.topology == item.topology]
        for role, arm in (
            ("reference", next((a for a in here if a.role == planning.REFERENCE), None)),
            (
                "candidate",
                next(
                    (
                        a
                        for a in here
                        if (a.role, a.name) == (planning.CANDIDATE, self.candidates[item.candidate])
                    ),
                    None,
                ),
            ),
        ):
            if arm is not None and arm.executor is not None:
                self._describe(item, **{f"{role}_executor": arm.executor})
        arm = next((a for a in here if a.vllm is not None), None)
        if arm is not None:
            versions = {name: getattr(arm, name) for name in ("vllm", "ray", "torch", "python")}
            self._describe(item, **{k: str(v) for k, v in versions.items() if v is not None})

    # -- texts ---------------------------------------------------------------------------------

    def _text(self, item: ParityItem, verdict: WorkloadVerdict, report: Path) -> str:
        lines = [line for arm in verdict.failed for line in self._about_arm(item, arm)]
        lines += [*verdict.lines, f"Report: {report}"]
        # One line says it all: pytest's short summary shows no more.
        return f"{verdict.verdict.upper()}: " + "\n".join(lines)

    def _about_arm(self, item: ParityItem, arm: Arm) -> list[str]:
        lines = [f"Arm {arm.label} failed: {arm.failure}"]
        first = self._runs.claim(arm.label, item.nodeid)
        if first != item.nodeid:
            return [*lines, f"  (the end of its log is with {first})"]
        if arm.log_tail:
            lines.append(f"  The last lines of its log, {arm.log}:")
        return [*lines, *(f"  | {line}" for line in arm.log_tail)]

    def _no_report(self, item: ParityItem, outcome: Outcome) -> str:
        text = f"The arms of {item.topology} did not run: {outcome.error}"
        if not outcome.detail:
            return text
        first = self._runs.claim(item.topology, item.nodeid)
        return f"{text}\n{outcome.detail}" if first == item.nodeid else f"{text} (see {first})"


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"The report folder {folder} cannot be written: {error.strerror}. Name another with "
            "--parity-report-dir."
        ) from None


def _is_ours(text: str) -> bool:
    path = text.partition("::")[0]
    return path == ROOT and not Path(path).exists()


def _is_named(nodeid: str, text: str) -> bool:
    """Say whether an argument names an item, or a group that it is in, as elsewhere in pytest."""
    return nodeid == text or nodeid.startswith((f"{text}::", f"{text}["))
