#!/bin/bash
# start-dockerd.sh SOCKET LOG: start a Docker engine without systemd. Does nothing if an engine answers.
set -euo pipefail
socket=$1 log=$2 pid_file=/var/run/docker.pid containerd_pid_file=/var/run/docker/containerd/containerd.pid

answers() { curl -fsS --max-time 2 --unix-socket "$socket" http://localhost/_ping >/dev/null 2>&1; }
# The process may not exist, hence the default.
runs() { [ "$(basename "$(readlink "/proc/$1/exe" || echo none)")" = "$2" ]; }

answers && exit 0
# The pid file of a killed engine remains, and dockerd refuses to start while any process has that pid.
if [ -e "$pid_file" ] && ! runs "$(cat "$pid_file")" dockerd; then rm -f "$pid_file"; fi
# The same applies to its containerd. The next dockerd would wait in vain for an orphaned containerd, so stop it first.
if [ -e "$containerd_pid_file" ]; then
  orphan=$(cat "$containerd_pid_file")
  if runs "$orphan" containerd; then
    kill "$orphan"
    for _ in $(seq 100); do
      [ -e "/proc/$orphan" ] || break
      sleep 0.1
    done
  fi
  rm -f "$containerd_pid_file"
fi

setsid nohup dockerd >"$log" 2>&1 </dev/null &
dockerd=$!
for _ in $(seq 300); do # 30 s; it usually takes half a second
  answers && exit 0
  kill -0 "$dockerd" 2>/dev/null || break
  sleep 0.1
done
echo "dockerd does not answer on $socket. The end of $log:" >&2
tail -n 20 "$log" >&2
exit 1
