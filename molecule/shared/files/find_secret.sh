#!/bin/bash
# Search everything on a box that a deployment leaves, but for the env file, for the secret in that file.
# Exit 1 and name each place that has it. The secret itself is never printed and never an argument.
set -euo pipefail
secret=$(sed -n 's/^VLLM_API_KEY=//p' "$SECRET_FILE")
[ "${#secret}" -ge 16 ] || { echo "no secret in $SECRET_FILE to search for"; exit 2; }
places=0
has() { # name, then the text on stdin
  places=$((places + 1))
  if grep --quiet --fixed-strings --file=<(printf '%s\n' "$secret"); then
    echo "secret found in $1"
    return 0
  fi
  return 1
}
found=0
for command in /proc/[0-9]*/cmdline; do
  # A process may end while we look.
  if tr '\0' ' ' 2>/dev/null <"$command" | has "$command"; then found=1; fi
done
if systemctl cat 'vllm@*' | has unit; then found=1; fi
if systemctl show --all 'vllm@*' | has "unit properties"; then found=1; fi
if journalctl --no-pager --all | has journal; then found=1; fi
if docker ps --all --no-trunc | has "docker ps"; then found=1; fi
while read -r file; do
  [ "$file" = "$SECRET_FILE" ] && continue
  if has "$file" <"$file"; then found=1; fi
done < <(find /etc/vllm-spark /etc/systemd/system -type f)
echo "searched $places places"
exit "$found"
