#!/bin/bash
# Print all state that the toolkit could have left on a host: files with modes, owners and checksums, units, firewall
# rules, Docker's objects, listeners. Excluded are the stores of Docker, systemd and Ansible, which change by themselves or
# do not come from the toolkit, and the copies that useradd and userdel keep of the files before their last change.
set -euo pipefail
cd /
trees=(etc usr opt root home var/lib run/vllm-spark)
left_out=(-path var/lib/docker -o -path var/lib/containerd -o -path var/lib/systemd -o -path '*/.ansible' -o -path '*/.ansible_async'
  -o -regex 'etc/g?\(passwd\|group\|shadow\)-')
for tree in "${trees[@]}"; do
  [ -e "$tree" ] || continue
  find "$tree" \( "${left_out[@]}" \) -prune -o -printf '%y %m %U %G %p %l\n' | sort
  # Outside etc, files older than the host are assumed to be unchanged. In etc every file is hashed.
  newer=(-newer /etc/hostname)
  if [ "$tree" = etc ]; then newer=(); fi
  find "$tree" \( "${left_out[@]}" \) -prune -o -type f "${newer[@]}" -print0 | sort --zero-terminated | xargs --null --no-run-if-empty sha256sum
done
echo '--- units'
systemctl list-unit-files --no-legend --no-pager | sort
systemctl list-units --all --plain --no-legend --no-pager 'vllm*' | sort
echo '--- firewall'
for save in iptables-save ip6tables-save; do "$save" | grep -E '^-A|^:.* - ' | sed -E 's/\[[0-9:]+\]//' || test $? -eq 1; done
if command -v nft >/dev/null; then nft list tables | sort; fi
echo '--- docker'
docker image ls --all --quiet --no-trunc | sort
docker ps --all --format '{{.Names}} {{.Image}}' | sort
docker volume ls --quiet | sort
docker network ls --quiet --no-trunc | sort
echo '--- listeners'
ss --listening --tcp --numeric --no-header | awk '{print $4}' | sort
