# shellcheck shell=bash
# Sourced by the other scripts: makes .venv hold the locked CPU stack and this package.
# Does nothing when it already does (the stamp in it names the locks it was made from).
#
# The lock is for CPython 3.11 to 3.13 on Linux x86-64; python.sh says how to choose one.

raycompat_root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
raycompat_venv=$raycompat_root/.venv
raycompat_locks=("$raycompat_root/requirements/vllm-0.32.0-cpu.txt" "$raycompat_root/requirements/test.txt")
source "$raycompat_root/scripts/python.sh"

raycompat_stamp() { # what the environment must have been made from
  cat "${raycompat_locks[@]}" "$raycompat_root/pyproject.toml" | cksum
  printf '%s\n' "$raycompat_root"
}

raycompat_setup() {
  local stamp=$raycompat_venv/.raycompat-stamp wanted python torch
  wanted=$(raycompat_stamp)
  if [ -x "$raycompat_venv/bin/vllm-ray-compat" ] && [ "$wanted" = "$(cat "$stamp" 2>/dev/null)" ]; then
    return
  fi
  python=$(raycompat_python) || exit $?
  echo "Setting up $raycompat_venv (vLLM's CPU build, Ray and test tools: about 2.5 GB, two to five minutes)." >&2
  rm -f "$stamp"
  [ -x "$raycompat_venv/bin/python" ] || "$python" -m venv "$raycompat_venv" ||
    raycompat_fail 3 "$python cannot make a virtual environment. On Debian and Ubuntu: apt install python3-venv"
  local pip=("$raycompat_venv/bin/python" -m pip --disable-pip-version-check)

  # torch first: it is the one package that not every index has in this build.
  torch=$(grep '^torch==' "${raycompat_locks[0]}")
  "${pip[@]}" install --quiet --no-deps "$torch" >&2 ||
    raycompat_fail 3 "the package index in use has no $torch, which is PyTorch's CPU build. Point pip at PyTorch's index of CPU wheels (pytorch.org, 'Get Started', compute platform CPU, names it) and run this again: PIP_EXTRA_INDEX_URL=<that index> bash scripts/parity.sh"
  "${pip[@]}" install --quiet --no-deps "${raycompat_locks[@]/#/-r}" >&2 ||
    raycompat_fail 3 "the locked packages could not be installed; pip says why above."
  "${pip[@]}" install --quiet --no-deps --no-build-isolation --editable "$raycompat_root" >&2 ||
    raycompat_fail 3 "this package could not be installed into $raycompat_venv; pip says why above."
  printf '%s\n' "$wanted" >"$stamp"
}

raycompat_setup
export PATH=$raycompat_venv/bin:$PATH VIRTUAL_ENV=$raycompat_venv
