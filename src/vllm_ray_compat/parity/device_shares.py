"""Devices shared out among processes that run arms side by side: a lock for each device."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from vllm_ray_compat.errors import UnusableEnvironmentError
from vllm_ray_compat.parity.locks import lock, try_lock

VISIBLE = "CUDA_VISIBLE_DEVICES"
_COUNT = "import torch; print(torch.cuda.device_count())"
#: Nobody runs more arms at once on one host; a bound for where only devices limit it.
_MOST_RUNS = 64


class NotEnoughDevicesError(UnusableEnvironmentError):
    """A run needs more devices than there are, so waiting would never end (exit code 3)."""


class DeviceShares:
    """Hands out devices, and the right to run at all, to whoever asks first.

    Args:
        folder: where the locks are; the same for all processes that share.
        devices: names as in ``CUDA_VISIBLE_DEVICES``; None where there are none to hand out, on
            the CPU or on another's Ray cluster.
        at_most: how many may run at once; None: as many as there are devices for, and one where
            there are none to hand out.
    """

    def __init__(self, folder: Path, devices: Sequence[str] | None, at_most: int | None) -> None:
        self._folder = folder
        self._devices = None if devices is None else tuple(devices)
        self._runs = at_most or (1 if devices is None else _MOST_RUNS)

    def check(self, count: int) -> None:
        """Check that *count* devices can be had at all.

        Raises:
            NotEnoughDevicesError: they cannot.
        """
        if self._devices is not None and count > len(self._devices):
            raise NotEnoughDevicesError(
                f"{count} devices are needed and {len(self._devices)} are visible "
                f"({VISIBLE}={','.join(self._devices)}). Make more visible, or choose a smaller "
                "topology."
            )

    @contextlib.contextmanager
    def take(self, count: int) -> Iterator[dict[str, str] | None]:
        """Hold *count* devices, if as many are free now; all of them or none.

        Yields:
            The variables with which a run sees its devices alone; None when it has to wait.
        """
        with contextlib.ExitStack() as held:
            yield self._take(count, held)

    def _take(self, count: int, held: contextlib.ExitStack) -> dict[str, str] | None:
        # One at a time: two that each hold a part of what they need would both go away empty.
        with lock(self._folder / "devices.lock"), contextlib.ExitStack() as mine:
            run = self._first_free([f"run-{n}" for n in range(self._runs)], 1, mine)
            if run is None:
                return None
            environ: dict[str, str] = {}
            if self._devices is not None:
                taken = self._first_free(self._devices, count, mine)
                if taken is None:
                    return None
                environ[VISIBLE] = ",".join(taken)
            held.push(mine.pop_all())
            return environ

    def _first_free(
        self, names: Sequence[str], count: int, held: contextlib.ExitStack
    ) -> list[str] | None:
        taken: list[str] = []
        for name in names:
            if len(taken) == count:
                break
            # A name may be that of a device, and is no name of a file then.
            path = self._folder / f"device-{name.replace(os.sep, '_')}.lock"
            attempt = contextlib.ExitStack()
            if attempt.enter_context(try_lock(path)):
                held.push(attempt.pop_all())
                taken.append(name)
            else:
                attempt.close()
        return taken if len(taken) == count else None


def visible_devices(environ: Mapping[str, str]) -> list[str]:
    """Return the devices that CUDA shows a process with *environ*, by the names it takes.

    Asked of torch, in another process, where the variable does not say: counting them would
    initialize CUDA in this one.

    Raises:
        UnusableEnvironmentError: torch could not say.
    """
    named = environ.get(VISIBLE)
    if named is not None:
        return [name for text in named.split(",") if (name := text.strip()) and name != "-1"]
    done = subprocess.run(
        [sys.executable, "-c", _COUNT],
        capture_output=True,
        text=True,
        env=dict(environ),
        stdin=subprocess.DEVNULL,
        check=False,
    )
    words = done.stdout.split()
    if done.returncode != 0 or not words or not words[-1].isdigit():
        tail = " | ".join(done.stderr.strip().splitlines()[-3:])
        raise UnusableEnvironmentError(
            f"The devices could not be counted (torch said: {tail or 'nothing'}). Name them: set "
            f"{VISIBLE}, for example {VISIBLE}=0,1."
        )
    return [str(index) for index in range(int(words[-1]))]
