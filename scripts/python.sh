# shellcheck shell=bash
# Sourced by the other scripts: how they end with an error, and which Python they use. Changes
# nothing: it makes no environment and sets no variable.
#
#   PYTHON=/path/to/python3.11 bash scripts/parity.sh      choose the interpreter

raycompat_fail() { # raycompat_fail EXIT_CODE TEXT; 2: wrong usage, 3: this machine cannot run it
  printf 'Error: %s\n' "$2" >&2
  exit "$1"
}

raycompat_python() { # print the path of a Python the locks are for
  local candidate
  [ "$(uname -sm)" = "Linux x86_64" ] ||
    raycompat_fail 3 "the locked packages are for Linux on x86-64, and this is $(uname -sm)."
  for candidate in ${PYTHON:+"$PYTHON"} python3.11 python3 python3.12 python3.13; do
    if "$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; then
      command -v "$candidate"
      return
    fi
    [ -z "${PYTHON:-}" ] || break
  done
  raycompat_fail 3 "no Python 3.11, 3.12 or 3.13 found${PYTHON:+ (PYTHON=$PYTHON is not one)}: vLLM 0.32.0 needs 3.11 or later. Install one, or name it: PYTHON=/path/to/python3.11"
}
