#!/usr/bin/env bash
# Run the tests; sets everything up on the first call. Arguments go to pytest:
#
#   bash scripts/test.sh                  all: first unit (a minute or two), then engine (half an hour)
#   CONFORMANCE=full bash scripts/test.sh     the same with every executor on every topology
#   PLACEMENT=full bash scripts/test.sh -k 'ray_serve or ray_data'     Ray Serve and Ray Data in every
#                                         shape of docs/serve.md, with both executors (half an hour)
#   bash scripts/test.sh -m unit          one part
#   bash scripts/test.sh -k selector      what pytest takes
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
source "$root/scripts/environment.sh"
cd "$root"
[ "$#" -eq 0 ] || exec pytest "$@"
# Two workers for what needs no engine; engines have the machine to themselves.
pytest -m "not engine" -n 2 --quiet
CONFORMANCE=${CONFORMANCE:-quick} pytest -m engine --durations=25
