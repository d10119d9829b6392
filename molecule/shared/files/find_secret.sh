#!/bin/bash
# Search everything that a deployment leaves on a host, except the env file, for the secret in that file.
# Exit with status 1 and print each place that contains it. The secret is never printed and never an argument.
set -euo pipefail
# `env` of a deployment is a link into the folder of its launch, and find lists files.
SECRET_FILE=$(realpath "$SECRET_FILE")
secret=$(sed -n "s/^${SECRET_NAME:-VLLM_API_KEY}=//p" "$SECRET_FILE")
[ "${#secret}" -ge 16 ] || { echo "no secret in $SECRET_FILE to search for"; exit 2; }
places=0 found=0
look() { # text on stdin, name of the place in $place
  places=$((places + 1))
  if grep --quiet --fixed-strings --file=<(printf '%s\n' "$secret"); then
    echo "secret found in $place"
    found=1
  fi
}
# All processes as one text, so a process that ends meanwhile is not an error.
place=argv
look < <(ps axww -o args)
place=unit
look < <(systemctl cat 'vllm@*')
place="unit properties"
look < <(systemctl show --all 'vllm@*')
place=journal
look < <(journalctl --no-pager --all)
place="docker ps"
look < <(docker ps --all --no-trunc)
while read -r place; do
  if [ "$place" != "$SECRET_FILE" ]; then look <"$place"; fi
done < <(find /etc/vllm-spark /etc/systemd/system -type f)
echo "searched $places places"
exit "$found"
