#!/usr/bin/env bash
# Parity and benchmarks on this machine's GPUs (two are enough): each case is one call of the installed
# vllm-ray-compat, and has to end as it must. Installs nothing; each run starts its own Ray.
#
#   bash scripts/gpus.sh OUT                   all cases, some hours
#   bash scripts/gpus.sh OUT smoke wrong       these parts; --list names all
#   MODEL=org/model bash scripts/gpus.sh OUT   a model of the local Hugging Face cache, or a folder
#   ENGINE_ARGS="dtype=bfloat16 gpu_memory_utilization=0.5" bash scripts/gpus.sh OUT    without spaces in one
#
# Writes a folder and a log for each case, and OUT/gpus.md with a line for each. Exits with 0 when every
# case ended as it must, with 1 when one did not, with 2 for wrong usage.
set -euo pipefail

parts=(smoke full graphs async runners wrong devices bundles bench bench-async)

usage() {
  printf '%s\nusage: bash scripts/gpus.sh OUT [PART ...]   parts: %s\n' "$1" "${parts[*]}" >&2
  exit 2
}

[ "$*" != --list ] || { printf '%s\n' "${parts[@]}" && exit; }
[ "$#" -gt 0 ] || usage "name a folder for the results."
out=$1
shift
for part in "$@"; do
  case " ${parts[*]} " in *" $part "*) ;; *) usage "there is no part $part." ;; esac
done
[ "$#" -gt 0 ] || set -- "${parts[@]}"
mkdir -p "$out"
shared=(--model "${MODEL:-tiny}")
for argument in ${ENGINE_ARGS:-}; do shared+=(--engine-arg "$argument"); done
table=$out/gpus.md
[ -f "$table" ] || printf '| case | | exit code | seconds | asked |\n|---|---|---:|---:|---|\n' >"$table"
code=0

# run NAME EXPECTED [VARIABLE=VALUE ...] COMMAND ...: EXPECTED is an exit code; with "1:text" that text
# has to be printed, too, one that no other run prints, so that nothing fails for another reason.
run() {
  local name=$1 expected=${2%%:*} said="" began=$SECONDS got=0 result=ok
  case $2 in *:*) said=${2#*:} ;; esac
  shift 2
  printf '\n== %s: %s\n' "$name" "$*"
  env "$@" "${shared[@]}" --report-dir "$out/$name" 2>&1 | tee "$out/$name.log" || got=$?
  if [ "$got" != "$expected" ] || { [ -n "$said" ] && ! grep -qF -- "$said" "$out/$name.log"; }; then
    result="WRONG: exit code $expected expected${said:+, and \"$said\"}"
    code=1
  fi
  printf '| %s | %s | %s | %s | `%s` |\n' "$name" "$result" "$got" "$((SECONDS - began))" "$*" >>"$table"
}

# The first model runner is the default of every arm: on the second, legacy is wrong with pipeline stages.
second=VLLM_USE_V2_MODEL_RUNNER=1
parity=(vllm-ray-compat parity run --reference mp --candidate v2)
with_legacy=("${parity[@]}" --also legacy)
both=(--topology tp2 --topology pp2)
graphs=(--engine-arg enforce_eager=false --engine-arg 'compilation_config={"cudagraph_mode":"FULL_DECODE_ONLY"}')
ahead=(--engine-core process --engine-arg async_scheduling=true) # as in production; legacy can't
decode=(vllm-ray-compat bench decode "${both[@]}")

for part in "$@"; do
  case $part in
  smoke | full) run "$part" 0 "${with_legacy[@]}" "${both[@]}" --suite "$part" ;;
  graphs)
    run graphs 0 "${with_legacy[@]}" "${both[@]}" "${graphs[@]}"
    run graphs-async 0 "${parity[@]}" "${both[@]}" "${graphs[@]}" "${ahead[@]}"
    ;;
  async) run async 0 "${parity[@]}" "${both[@]}" "${ahead[@]}" ;;
  runners)
    run second-runner 0 "$second" "${parity[@]}" "${both[@]}"
    run second-runner-tp2 0 "$second" "${with_legacy[@]}" --topology tp2
    run second-runner-async 0 "$second" "${parity[@]}" "${both[@]}" "${ahead[@]}"
    ;;
  wrong) # the known wrong result: refused, and red where the refusal is taken away
    run refused "1:RAYCOMPAT_REPAIRS=all,-legacy-model-runner" "$second" "${with_legacy[@]}" --topology pp2
    run wrong "1:RayChannelTimeoutError" "$second" RAYCOMPAT_REPAIRS=all,-legacy-model-runner \
      RAY_CGRAPH_get_timeout=60 "${with_legacy[@]}" --topology pp2
    ;;
  devices)
    uuids=$(nvidia-smi --query-gpu=uuid --format=csv,noheader | head -2 | paste -sd ,)
    run devices-reversed 0 CUDA_VISIBLE_DEVICES=1,0 "${with_legacy[@]}" --topology tp2
    run devices-uuid 0 CUDA_VISIBLE_DEVICES="$uuids" "${with_legacy[@]}" --topology tp2
    run half-devices 0 VLLM_RAY_PER_WORKER_GPUS=0.5 "${with_legacy[@]}" --topology tp2
    ;;
  bundles) run bundles-reversed 0 "${with_legacy[@]}" "${both[@]}" --bundle-indices 1,0 ;;
  bench)
    run bench-control-plane 0 vllm-ray-compat bench control-plane --world-size 1 --world-size 2
    run bench-decode 0 "${decode[@]}" --engine-core process
    ;;
  bench-async) run bench-decode-async 0 "${decode[@]}" --candidate v2 "${ahead[@]}" ;;
  esac
done
printf '\n' && cat "$table"
exit "$code"
