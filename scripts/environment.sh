# Sourced by the other scripts: makes .venv hold the locked CPU stack and this package.
# Does nothing when it already does (the stamp in it names the locks it was made from).
#
#   PYTHON=/path/to/python3.11 bash scripts/parity.sh      choose the interpreter
#
# The lock is for CPython 3.11 to 3.13 on Linux x86-64.

raycompat_root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
raycompat_venv=$raycompat_root/.venv
raycompat_locks=("$raycompat_root/requirements/vllm-0.32.0-cpu.txt" "$raycompat_root/requirements/test.txt")

raycompat_fail() {
  printf 'Error: %s\n' "$1" >&2
  exit 3
}

raycompat_python() {
  local candidate
  for candidate in ${PYTHON:+"$PYTHON"} python3.11 python3 python3.12 python3.13; do
    if "$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; then
      command -v "$candidate"
      return
    fi
    [ -z "${PYTHON:-}" ] || break
  done
  raycompat_fail "no Python 3.11, 3.12 or 3.13 found${PYTHON:+ (PYTHON=$PYTHON is not one)}: vLLM 0.32.0 needs 3.11 or later. Install one, or name it: PYTHON=/path/to/python3.11"
}

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
  [ "$(uname -sm)" = "Linux x86_64" ] || raycompat_fail "the locked CPU stack is for Linux on x86-64, and this is $(uname -sm)."
  python=$(raycompat_python) || exit $?
  echo "Setting up $raycompat_venv (vLLM's CPU build, Ray and test tools: about 2.5 GB, two to five minutes)." >&2
  rm -f "$stamp"
  [ -x "$raycompat_venv/bin/python" ] || "$python" -m venv "$raycompat_venv" ||
    raycompat_fail "$python cannot make a virtual environment. On Debian and Ubuntu: apt install python3-venv"
  local pip=("$raycompat_venv/bin/python" -m pip --disable-pip-version-check)

  # torch first: it is the one package that not every index has in this build.
  torch=$(grep '^torch==' "${raycompat_locks[0]}")
  "${pip[@]}" install --quiet --no-deps "$torch" >&2 ||
    raycompat_fail "the package index in use has no $torch, which is PyTorch's CPU build. Point pip at PyTorch's index of CPU wheels (pytorch.org, 'Get Started', compute platform CPU, names it) and run this again: PIP_EXTRA_INDEX_URL=<that index> bash scripts/parity.sh"
  "${pip[@]}" install --quiet --no-deps "${raycompat_locks[@]/#/-r}" >&2 ||
    raycompat_fail "the locked packages could not be installed; pip says why above."
  "${pip[@]}" install --quiet --no-deps --no-build-isolation --editable "$raycompat_root" >&2 ||
    raycompat_fail "this package could not be installed into $raycompat_venv; pip says why above."
  printf '%s\n' "$wanted" >"$stamp"
}

raycompat_setup
export PATH=$raycompat_venv/bin:$PATH VIRTUAL_ENV=$raycompat_venv
