#!/bin/bash
# Run a command and kill it with all its children as soon as a unit on a Spark has stopped.
#   kill_between.sh HOST UNIT COMMAND …
set -uo pipefail
host=$1 unit=$2
shift 2
# Molecule forces colours, which would change the output.
state() { ANSIBLE_FORCE_COLOR=0 ANSIBLE_NOCOLOR=1 ansible -i inventories/sandbox "$host" -b -m ansible.builtin.command -a "systemctl is-active $unit" 2>/dev/null | tail -n 1; }
if [ "$(state)" != active ]; then echo "$unit did not run at first"; exit 1; fi
setsid "$@" >/dev/null 2>&1 &
for _ in $(seq 120); do
  if [ "$(state)" = active ]; then continue; fi
  kill -9 -- "-$!"
  exit 0
done
echo "$unit never stopped"
exit 1
