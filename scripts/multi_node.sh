#!/usr/bin/env bash
# A Ray cluster of several nodes on this one machine, each in network, mount, process and IPC
# namespaces of its own: own address, own /dev/shm, own process ids, fake devices (CPU platform).
#
#   bash scripts/multi_node.sh up [OPTIONS]              make it; prints what reaches it
#   bash scripts/multi_node.sh exec NODE COMMAND...      run a command on node 1, 2, …, with the
#                                                        environment an engine needs there
#   bash scripts/multi_node.sh env NODE                  print that environment, as `export` lines
#   bash scripts/multi_node.sh down                      remove everything; also when nothing is there
#   bash scripts/multi_node.sh run [OPTIONS] -- COMMAND...    up, exec 1 COMMAND, down
#
# Options of up and run:
#   --devices 2,2        fake GPUs of each node, and so how many nodes (default 2,2)
#   --delay 20ms         of the link between the nodes, each way (default none)
#   --loss 1%            of packets (default none)
#   --ports ray-only     only Ray's own TCP ports are open between nodes; or a list: 6379,10002-10999
#   --same-address       all nodes have the address of the first, as containers in the host's network
#   --env [NODE:]NAME=VALUE   a variable of Ray and of exec, on one node or all; repeatable
#   --owner PID          down by itself when this process is gone
# and everywhere:
#   --name NAME          which cluster (default rcn); several can be up, they cannot see each other
#
# Nodes are joined by veth pairs whose ends have the same name in each (a bridge in a namespace of
# its own joins more than two). Delay and loss are tc netem's; where the kernel has none, and for
# --ports, scripts/shaped_link.py carries the packets between TUN interfaces. Nothing of the host's
# own network is touched, and nothing leads out.
#
# Needs root, iproute2 and util-linux. Exit codes: that of COMMAND; 1 a failure; 2 wrong usage;
# 3 this machine cannot do it, with the reason.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$here/python.sh" # raycompat_fail

interface=ray0
gcs_port=6379
# TEST-NET of RFC 2544, which no real network uses.
address_of() { echo "198.18.0.$1"; }
namespace_of() { if [ -n "$same_address" ]; then echo "$name-1"; else echo "$name-$1"; fi; }
# Other ports for each node, because they share an address with --same-address.
first_port_of() { echo $((6379 + $1 * 10)); }
first_worker_port_of() { echo $((10002 + ($1 - 1) * 1000)); }
ports_of_ray() {
  local node ports=$gcs_port
  for node in $(seq "${#devices[@]}"); do
    ports+=,$(first_port_of "$node")-$(($(first_port_of "$node") + 9))
    ports+=,$(first_worker_port_of "$node")-$(($(first_worker_port_of "$node") + 999))
  done
  echo "$ports"
}

# -- what this machine can do ----------------------------------------------------------------

check_machine() {
  local tool
  [ "$(uname -s)" = Linux ] || raycompat_fail 3 "network namespaces are Linux's, and this is $(uname -s)."
  [ "$(id -u)" = 0 ] || raycompat_fail 3 "making network namespaces needs root (sudo bash scripts/multi_node.sh …)."
  for tool in ip unshare nsenter setsid mount; do
    command -v "$tool" >/dev/null || raycompat_fail 3 "there is no command '$tool' here (iproute2 and util-linux have them)."
  done
  ip netns add "$name-try" 2>/dev/null || raycompat_fail 3 "this machine allows no network namespace: $(ip netns add "$name-try" 2>&1)"
  trap 'ip netns del "$name-try"' EXIT
  unshare --mount --ipc --pid --fork true 2>/dev/null || raycompat_fail 3 "this machine allows no mount, IPC and process namespaces (unshare)."
  shaped=
  if [ -n "$ports" ]; then
    shaped=tun
  elif [ -n "$delay$loss" ]; then
    shaped=tun
    if command -v tc >/dev/null && ip netns exec "$name-try" tc qdisc add dev lo root netem delay 1ms 2>/dev/null; then
      shaped=netem
    fi
  fi
  [ "$shaped" != tun ] || [ -c /dev/net/tun ] || raycompat_fail 3 "the kernel has no tc netem for this, and no /dev/net/tun for a link of our own."
  [ -n "$shaped" ] || ip -n "$name-try" link add one type veth peer name other 2>/dev/null ||
    raycompat_fail 3 "the kernel has no veth interfaces."
  ip netns del "$name-try"
  trap - EXIT
}

# -- network ---------------------------------------------------------------------------------

make_network() {
  local node namespaces=()
  for node in $(seq "${#devices[@]}"); do
    [ "$(namespace_of "$node")" = "$name-$node" ] || continue
    namespaces+=("$name-$node=$(address_of "$node")")
    ip netns add "$name-$node"
    ip -n "$name-$node" link set lo up
  done
  if [ "${#namespaces[@]}" = 1 ]; then
    ip -n "$name-1" link add "$interface" type veth peer name unused
    ip -n "$name-1" link set unused up
  elif [ "$shaped" = tun ]; then
    detached "$state/link.log" "$python" -u "$here/shaped_link.py" --interface "$interface" \
      ${delay:+--delay "$delay"} ${loss:+--loss "$loss"} ${ports:+--ports "$ports"} "${namespaces[@]}"
    remember link $!
    await "the link between the nodes" "$state/link.log" '^ready' $!
  elif [ "${#namespaces[@]}" = 2 ]; then
    ip link add "$interface" netns "$name-1" type veth peer name "$interface" netns "$name-2"
  else
    ip netns add "$name-switch"
    ip -n "$name-switch" link add switch type bridge
    ip -n "$name-switch" link set switch up
    for node in $(seq "${#namespaces[@]}"); do
      ip link add "$interface" netns "$name-$node" type veth peer name "port$node" netns "$name-switch"
      ip -n "$name-switch" link set "port$node" master switch up
    done
  fi
  for node in $(seq "${#namespaces[@]}"); do
    ip -n "$name-$node" address add "$(address_of "$node")/24" dev "$interface"
    ip -n "$name-$node" link set "$interface" up
    if [ "$shaped" = netem ]; then
      ip netns exec "$name-$node" tc qdisc add dev "$interface" root netem ${delay:+delay "$delay"} ${loss:+loss "$loss"}
    fi
  done
}

# -- nodes -----------------------------------------------------------------------------------

write_environments() {
  local node pair token address
  token=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')
  "$python" -c 'from vllm_ray_compat.parity.environment import base_environment as base
for name, value in base({}, cpu=True).items(): print(f"{name}={value}")' >"$state/pins" ||
    raycompat_fail 1 "$python cannot import vllm_ray_compat; it says why above."
  for node in $(seq "${#devices[@]}"); do
    address=$(address_of "$([ -n "$same_address" ] && echo 1 || echo "$node")")
    {
      cat "$state/pins"
      printf '%s\n' "RAY_ADDRESS=$(address_of 1):$gcs_port" RAY_AUTH_MODE=token "RAY_AUTH_TOKEN=$token"
      # Without them vLLM and gloo look up the host's name, which is not of this network.
      printf '%s\n' "VLLM_HOST_IP=$address" "GLOO_SOCKET_IFNAME=$interface" "TMPDIR=$state/private/tmp"
      # What torch compiles is the same for all, takes a minute, and would go with the nodes.
      echo "TORCHINDUCTOR_CACHE_DIR=${TORCHINDUCTOR_CACHE_DIR:-${TMPDIR:-/tmp}/torchinductor_$(id -un)}"
      for pair in "${environment[@]}"; do
        case $pair in
          "$node":*) printf '%s\n' "${pair#*:}" ;;
          [0-9]*:*) ;;
          *) printf '%s\n' "$pair" ;;
        esac
      done
    } >"$state/node-$node.env"
  done
}

# Run a command in the background and in a session of its own, without what this shell has open: a
# lock that the caller holds, for one, would stay held while the cluster is up.
detached() { # detached LOG COMMAND...
  (
    for open in /proc/"$BASHPID"/fd/*; do
      open=${open##*/}
      [ "$open" -le 2 ] || [ "$open" -ge 255 ] || eval "exec $open>&-"
    done
    exec setsid "${@:2}" </dev/null >"$1" 2>&1
  ) &
  disown # its end is no news
}

start_node() { # start_node NODE: in the background, until its Ray ends
  local node=$1 first arguments=()
  local address variables
  first=$(first_port_of "$node")
  mapfile -t variables <"$state/node-$node.env"
  address=$(address_of "$([ -n "$same_address" ] && echo 1 || echo "$node")")
  if [ "$node" = 1 ]; then
    arguments=(--head --port=$gcs_port --include-dashboard=false --ray-client-server-port=$((first + 6)))
  else
    arguments=(--address="$(address_of 1):$gcs_port")
  fi
  arguments+=(
    --node-ip-address="$address" --num-gpus="${devices[node - 1]}" --num-cpus="$(nproc)"
    --node-manager-port=$first --object-manager-port=$((first + 1)) --metrics-export-port=$((first + 2))
    --dashboard-agent-grpc-port=$((first + 3)) --dashboard-agent-listen-port=$((first + 4))
    --runtime-env-agent-port=$((first + 5))
    --min-worker-port="$(first_worker_port_of "$node")" --max-worker-port=$(($(first_worker_port_of "$node") + 999))
    --temp-dir="$state/private/ray" --object-store-memory=$((256 * 1024 * 1024)) --disable-usage-stats --block
  )
  # A process group and process ids of its own, and the kernel ends them all with the first.
  detached "$state/node-$node.log" ip netns exec "$(namespace_of "$node")" \
    unshare --mount --ipc --pid --fork --kill-child --mount-proc \
    bash "$here/multi_node.sh" _node "$state/private" "${variables[@]}" \
    -- "$python" -m ray.scripts.scripts start "${arguments[@]}"
  remember "node-$node" $!
}

# The first process of a node: its own shared memory and temporary folder, then Ray.
run_node() { # run_node FOLDER NAME=VALUE... -- COMMAND...
  local folder=$1 variables=()
  shift
  mount --make-rprivate /
  mount -t tmpfs tmpfs /dev/shm
  mount -t tmpfs tmpfs "$folder"
  mkdir "$folder/tmp" "$folder/ray"
  while [ "$1" != -- ]; do
    # That address is for drivers.
    case $1 in RAY_ADDRESS=*) ;; *) variables+=("$1") ;; esac
    shift
  done
  shift
  # Not exec: the first process has to take in the orphans of the others.
  env "${variables[@]}" "$@" &
  wait $!
}

await() { # await WHAT LOG PATTERN PID
  local waited=0
  until grep -q "$3" "$2"; do
    if ! kill -0 "$4" 2>/dev/null || [ "$waited" -ge 1200 ]; then
      sed 's/^/  /' "$2" | tail -n 15 >&2
      raycompat_fail 1 "$1 did not come up; its log ends as shown."
    fi
    sleep 0.1
    waited=$((waited + 1))
  done
}

# -- what is there ---------------------------------------------------------------------------

started_at() { sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | cut -d' ' -f20; }
remember() { echo "$2 $(started_at "$2")" >"$state/$1.pid"; }
remembered() { # print the process id of WHAT, if it is still that process
  local pid began
  [ -f "$state/$1.pid" ] && read -r pid began <"$state/$1.pid" && [ -n "$began" ] && [ "$(started_at "$pid")" = "$began" ] && echo "$pid"
}

down() {
  local namespace pid
  if pid=$(remembered link); then kill "$pid" 2>/dev/null || true; fi
  # By its group: it waits in a child. It may be the one that calls this.
  if pid=$(remembered owner) && [ "$pid" != $$ ]; then kill -- "-$pid" 2>/dev/null || true; fi
  for namespace in $(ip netns list 2>/dev/null | cut -d' ' -f1 | grep -E "^$name-([0-9]+|switch|try)$"); do
    for _ in $(seq 100); do # until nobody is left in it
      pid=$(ip netns pids "$namespace" 2>/dev/null) || break
      [ -n "$pid" ] || break
      # shellcheck disable=SC2086
      kill -KILL $pid 2>/dev/null || true
      sleep 0.1
    done
    ip netns del "$namespace" 2>/dev/null || true
  done
  rm -rf "$state"
}

# The Python on PATH where it has what a node needs, else the checkout's own environment.
use_python() {
  python=$(command -v python || true)
  if [ -z "$python" ] || ! "$python" -c 'import importlib.util as u, sys
sys.exit(not (u.find_spec("ray") and u.find_spec("vllm_ray_compat")))'; then
    source "$here/environment.sh"
    python=$(command -v python)
  fi
}

up() {
  local node
  check_machine
  use_python
  [ "$ports" != ray-only ] || ports=$(ports_of_ray)
  mkdir "$state" 2>/dev/null || raycompat_fail 2 "the cluster '$name' is up, or half of it. Remove it first: bash scripts/multi_node.sh down --name $name"
  chmod 700 "$state"
  trap 'down' EXIT
  trap 'exit 130' INT TERM
  mkdir "$state/private"
  make_network
  write_environments
  for node in $(seq "${#devices[@]}"); do
    start_node "$node"
    # The others join the first, and may come together.
    [ "$node" -gt 1 ] || await "Ray on node 1" "$state/node-1.log" 'Ray runtime started' "$(remembered node-1)"
  done
  for node in $(seq 2 "${#devices[@]}"); do
    await "Ray on node $node" "$state/node-$node.log" 'Ray runtime started' "$(remembered "node-$node")"
  done
  if [ -n "$owner" ]; then
    # shellcheck disable=SC2016
    detached /dev/null bash -c 'tail --pid="$1" -f /dev/null; exec bash "$2" down --name "$3"' - \
      "$owner" "$here/multi_node.sh" "$name"
    remember owner $!
  fi
  trap - EXIT INT TERM
}

inside() { # inside NODE COMMAND...; in a subshell, or as the last thing of this one
  local node=$1 pid variables
  shift
  pid=$(remembered "node-$node") || raycompat_fail 1 "there is no node $node in the cluster '$name': bash scripts/multi_node.sh up"
  # The process that made the namespaces is not in them; its child is.
  pid=$(ps -o pid= --ppid "$pid" | tr -d ' ')
  mapfile -t variables <"$state/node-$node.env"
  # shellcheck disable=SC2016
  exec nsenter --target "$pid" --net --mount --ipc --pid -- env "${variables[@]}" bash -c 'cd "$1" && shift && exec "$@"' - "$PWD" "$@"
}

# -- the command line ------------------------------------------------------------------------

name=rcn devices=(2 2) delay='' loss='' ports='' same_address='' owner='' environment=()
command=${1:-}
[ "$#" -eq 0 ] || shift
[ "$command" != _node ] || { run_node "$@"; exit; }
while [ "$#" -gt 0 ]; do
  case $1 in
    --same-address) same_address=1 && shift && continue ;;
    --name | --devices | --delay | --loss | --ports | --env | --owner)
      [ "$#" -gt 1 ] || raycompat_fail 2 "$1 needs a value; see the head of scripts/multi_node.sh."
      ;;
    --) shift && break ;;
    -*) raycompat_fail 2 "unknown option '$1'; see the head of scripts/multi_node.sh." ;;
    *) break ;;
  esac
  case $1 in
    --name) name=$2 ;;
    --devices) IFS=, read -r -a devices <<<"$2" ;;
    --delay) delay=$2 ;;
    --loss) loss=$2 ;;
    --ports) ports=$2 ;;
    --env) environment+=("$2") ;;
    --owner) owner=$2 ;;
  esac
  shift 2
done
[[ $name =~ ^[a-z0-9]{1,12}$ ]] || raycompat_fail 2 "--name $name: up to twelve of a to z and 0 to 9."
[[ " ${devices[*]} " =~ ^(\ [0-9]+)+\ $ ]] || raycompat_fail 2 "--devices: numbers with a comma between them, one for each node, such as 2,2."
# Short, because Ray keeps sockets below it, and a socket's path may have 107 characters.
state=/tmp/raycompat-$name

case $command in
  up)
    up
    echo "Up: ${#devices[@]} nodes with ${devices[*]} devices, at $(address_of 1):$gcs_port. Each has this environment:"
    (inside 1 env) | grep -E '^(RAY_|VLLM_HOST_IP|GLOO_SOCKET_IFNAME|TMPDIR)' | sed 's/^\(RAY_AUTH_TOKEN=\).*/\1…/; s/^/  /'
    echo "Run something there: bash scripts/multi_node.sh exec --name $name 1 COMMAND"
    ;;
  run)
    [ "$#" -gt 0 ] || raycompat_fail 2 "run needs a command after --."
    up
    trap 'down' EXIT
    trap 'exit 130' INT TERM
    (inside 1 "$@")
    ;;
  exec)
    [ "$#" -gt 1 ] || raycompat_fail 2 "exec needs a node and a command."
    use_python # what the command is called by may be in there
    inside "$@"
    ;;
  env)
    [ -f "$state/node-${1:-}.env" ] || raycompat_fail 1 "there is no node '${1:-}' in the cluster '$name'."
    sed 's/^/export /' "$state/node-$1.env"
    ;;
  down) down ;;
  *) raycompat_fail 2 "up, exec, env, run or down; see the head of scripts/multi_node.sh." ;;
esac
