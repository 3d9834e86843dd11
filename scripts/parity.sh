#!/usr/bin/env bash
# Prove that vLLM's legacy and V2 Ray executors (and mp) give identical outputs, on this machine's
# CPU. Sets everything up on the first call. Arguments go to `vllm-ray-compat parity run`:
#
#   bash scripts/parity.sh                     tp2 and pp2, legacy against v2 and mp
#   bash scripts/parity.sh --topology tp2pp2   other topologies
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
source "$root/scripts/environment.sh"
[ "$#" -gt 0 ] || set -- --model tiny --topology tp2 --topology pp2 --suite smoke
exec vllm-ray-compat parity run --reference legacy --candidate v2 --also mp --report-dir "$root/reports/parity" "$@"
