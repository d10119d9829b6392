"""A desk and a Spark in a folder, where the commands of a page are typed. Nothing outside of the folder is touched:
PATH has stand-ins and tools that read, and the absolute paths of a command lead into the folder."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

# Tools that read text and files, used as they are. `grep` is below: a grep without a match is a fault.
TOOLS = (
    "awk", "bash", "cat", "chmod", "cp", "cut", "date", "df", "diff", "echo", "env", "false", "find", "gzip", "head",
    "hostname", "jq", "ln", "ls", "mkdir", "mv", "printf", "ps", "readlink", "rm", "sed", "sh", "sha256sum", "sleep",
    "sort", "sync", "tail", "tar", "tee", "test", "touch", "tr", "true", "uname", "uniq", "wc", "who",
)  # fmt: skip
# Programs whose work needs a real thing. Their arguments are read by the shell and by ssh, and not by them.
NEED: Mapping[str, Sequence[str]] = {
    "a GPU or its driver": ("nvidia-bug-report.sh", "nvidia-ctk", "nvidia-smi"),
    "a cable or a network": (
        "ethtool", "hf", "ibdev2netdev", "ibv_devinfo", "ip", "iptables", "lldpcli", "lsns", "nc", "netplan", "nmcli",
        "ping", "rsync", "scp", "show_gids", "ssh-copy-id", "tcpdump", "ufw",
    ),
    "firmware, a kernel or a boot": (
        "findmnt", "free", "fwupdmgr", "last", "loginctl", "modprobe", "swapoff", "swapon", "sysctl", "timedatectl",
        "update-grub", "vmstat",
    ),
    # test_wheel_install runs uv and pip.
    "packages": ("apt-get", "pip", "pytest", "uv"),
    "services": (
        "amtool", "chown", "haproxy", "kill", "nft", "ollama", "promtool", "ray", "systemctl", "usermod", "vllm-switch",
    ),
    "this machine's keys and vault": ("ansible-vault", "openssl", "ssh-add", "ssh-keygen"),
    "a clone": ("editor", "git", "make", "python3", "yamllint"),
    # Their own parsers judge the arguments (typed_commands).
    "an inventory": ("ansible", "ansible-playbook", "vllm-spark"),
}  # fmt: skip
# What a stand-in prints, where a page reads it. The journal is more: see `Desk`.
PRINTS: Mapping[str, str] = {
    "sshd": "port 22\nlistenaddress 0.0.0.0:22\nauthorizedkeysfile .ssh/authorized_keys\npasswordauthentication yes\n",
    "ss": 'LISTEN 0 512 0.0.0.0:8000 0.0.0.0:* users:(("haproxy",pid=812,fd=9))\nLISTEN 0 9 10.0.0.1:PORT 0.0.0.0:*\n',
    "lspci": "0000:01:00.0 Ethernet controller: Mellanox Technologies MT2910 Family [ConnectX-7]\n"
    "\t\tLnkCap: Port #0, Speed 32GT/s, Width x4\n\t\tLnkSta: Speed 32GT/s, Width x4\n",
    "lsmod": "mlx5_ib 491520 0\nib_uverbs 217088 2 rdma_ucm,mlx5_ib\n",
    "dpkg": "ii  nvidia-driver-580-open  580.95.05-0ubuntu0.24.04.2  arm64  NVIDIA driver metapackage\n",
    "ansible-inventory": '{\n    "vllm_edge": {"open": false},\n    "vllm_secrets": {"NAME": "x"}\n}\n',
    "curl": 'vllm:request_success_total{finished_reason="stop"} 3.0\n',
    "dmesg": "[1.2] mlx5_core 0000:01:00.0: firmware version: 28.45.4028, gid table, AER enabled\n"
    "[2.0] nvme nvme0: 20/0/0 default/read/poll queues\n[3.1] EXT4-fs (nvme0n1p2): mounted\n"
    "[9.5] NVRM: loading NVIDIA UNIX Open Kernel Module for aarch64\n",
}
# In the container of an engine, and of an image.
DOCKER = r"""
words="$*"
case "$words" in *"--name vllm-"*|*"--name=vllm-"*) echo "$words" >> "$DESK/launched";; esac
case "$1" in
info) printf ' Cgroup Driver: systemd\n CDI spec directories:\n  /etc/cdi\n';;
exec) shift; while [ "${1#-}" != "$1" ]; do shift; done; shift; exec "$@";;
run) case "$words" in
  *"--entrypoint pip "*) printf 'torch 2.9.0\nvllm 0.30.0\ntransformers 5.14.1\n';;
  *--help=all*) echo "  --moe-backend {auto,marlin}";; esac;;
esac
exit 0
"""
SSH = """
while [ "${1#-}" != "$1" ]; do case "$1" in -o|-p|-l|-i|-F|-J|-L) shift;; esac; shift; done
shift
[ $# -gt 0 ] || exit 0
cd "$DESK/spark/home/user" && exec sh -c "$*"
"""
SUDO = """
while [ "${1#-}" != "$1" ]; do case "$1" in -u|-g) shift;; esac; shift; done
[ $# -gt 0 ] || exit 0
exec "$@"
"""
GREP = """
"$REAL_GREP" "$@"
status=$?
[ $status -ne 1 ] || echo "grep $*" >> "$DESK/unmatched"
exit $status
"""
# The folders of a Spark, and of the desk.
ROOTED = re.compile(r"(?<![\w.:/@*$}-])/(?=(?:etc|run|var|proc|sys|boot|media|dev|tmp|home)/)")
SMALL = ("env", "deployed.json", "gates.json", "link.key")
# Other files of a Spark that pages name.
FILES: Mapping[str, str] = {
    **dict.fromkeys(
        (
            "boot/vmlinuz-6.17", "dev/infiniband/uverbs0", "dev/null", "dev/shm/x", "etc/default/earlyoom",
            "etc/default/grub",
            "etc/netplan/40-cx7.yaml", "etc/nvidia/cx7-hotplug-enabled", "etc/ssh/ssh_host_ed25519_key.pub",
            "etc/sudoers.d/vllm-spark", "etc/vllm-spark/edge/haproxy.cfg",
            "etc/vllm-spark/edge/keys.map", "home/user/.cache/huggingface/hub/x",
            "home/user/FOLDER", "home/user/.ssh/id_ed25519.pub", "media/disk/bundle/files.sha256.sig", "proc/cmdline",
            "proc/driver/nvidia/version", "proc/pressure/memory", "proc/sys/vm/drop_caches", "proc/sys/vm/swappiness",
            "run/netplan/x", "run/reboot-required.pkgs", "run/vllm-spark/DEPLOYMENT/api.sock",
            "run/vllm-spark/NAME/state.json", "run/vllm-spark/operator.lock",
            "sys/class/dmi/id/bios_version", "sys/class/infiniband/HCA/fw_ver", "sys/class/infiniband/HCA/ports/1/rate",
            "sys/fs/pstore/x", "var/lib/systemd/pstore/x", "tmp/derived.tar", "var/backups/x", "var/lib/docker/x",
            "var/lib/vllm-spark/build/NAME-HASH/build.log",
        ),
        "",
    ),
    "etc/systemd/network/10.link": "Name=NAME",
    "etc/udev/rules.d/70.rules": 'NAME="NAME"',
    "media/disk/bundle/files.sha256": f"{hashlib.sha256(b'').hexdigest()}  files.sha256.sig\n",
    "proc/1/limits": "Max locked memory  unlimited  unlimited  bytes\n",
    "proc/meminfo": "MemTotal: 1 kB\nCmaTotal: 1 kB\n",
    "sys/class/infiniband/HCA/ports/1/gid_attrs/types/3": "RoCE v2\n",
    "sys/class/infiniband/HCA/ports/1/gids/3": "0000:0000:0000:0000:0000:ffff:c0a8:640b\n",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Typed:
    """What a typed command did: what it printed as an error, greps without a match, and launches that it started."""

    errors: str
    unmatched: Sequence[str]
    launched: Sequence[str]


class Desk:
    """The folder. `journal` is what journalctl prints."""

    def __init__(self, folder: Path, journal: str) -> None:
        self.folder = folder
        self.root = folder / "spark"
        self.bin = folder / "bin"
        self.bin.mkdir()
        (folder / "journal").write_text(journal)
        scripts = {"ssh": SSH, "sudo": SUDO, "docker": DOCKER, "grep": GREP, "journalctl": 'cat "$DESK/journal"\n'}
        needed = {name: "cat > /dev/null < /dev/null\n" for names in NEED.values() for name in names}
        prints = {name: f"cat <<'END'\n{text}END\n" for name, text in PRINTS.items()}
        for name, body in {**needed, **prints, **scripts}.items():
            (self.bin / name).write_text(f"#!/bin/sh\n{body}")
            (self.bin / name).chmod(0o755)
        for name in TOOLS:
            if real := _which(name):
                (self.bin / name).symlink_to(real)
        self._place()

    def _place(self) -> None:
        """Write the files of a Spark that pages name."""
        for name in ("NAME", "DEPLOYMENT"):
            for file in ("launch", "failed/launch", "previous/launch", "current/launch", "current/env", *SMALL):
                self._write(f"etc/vllm-spark/{name}/{file}", "{}")
        for model in ("models--OWNER--NAME", "models--OWNER--REPOSITORY"):
            large = "a file of the hub"
            sha256 = hashlib.sha256(large.encode()).hexdigest()
            self._write(f"var/lib/vllm-spark/hub/{model}/blobs/{sha256}", large)
            for file in ("snapshots/COMMIT/config.json", ".vllm-spark/COMMIT.json"):
                self._write(f"var/lib/vllm-spark/hub/{model}/{file}", "{}")
        for name, text in FILES.items():
            self._write(name, text)
        restore = self.root / "var/lib/vllm-spark/fabric/restore"
        restore.parent.mkdir(parents=True)
        restore.write_text("#!/bin/sh\n")
        restore.chmod(0o755)

    def _write(self, name: str, text: str) -> None:
        file = self.root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def place_launch(self, text: str) -> None:
        """Install a rendered launch under each name, executable as `deploy` does it."""
        for file in (self.root / "etc/vllm-spark").rglob("launch"):
            file.write_text(text)
            file.chmod(0o755)

    def rooted(self, text: str) -> str:
        """Return a text whose absolute paths lead into the folder."""
        return ROOTED.sub(f"{self.root}/", text)

    def type(self, command: str, folder: Path) -> Typed:
        """Type a command in a folder of the desk."""
        for name in ("unmatched", "launched"):
            (self.folder / name).write_text("")
        env = {
            "PATH": str(self.bin),
            "HOME": str(self.root / "home/user"),
            "DESK": str(self.folder),
            "REAL_GREP": str(_which("grep")),
            "EDITOR": "editor",
            "VLLM_KEY": "k",
            "LC_ALL": "C.UTF-8",
        }
        # No process has this number.
        rooted = re.sub(r"\bPID\b", "99999999", self.rooted(command))
        done = subprocess.run(
            [str(self.bin / "bash"), "-c", rooted],
            env=env, cwd=folder, capture_output=True, text=True, timeout=20, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        written = {name: (self.folder / name).read_text().splitlines() for name in ("unmatched", "launched")}
        return Typed(done.stderr.strip(), **written)


def _which(name: str) -> str | None:
    return next(
        (f"{folder}/{name}" for folder in ("/usr/bin", "/bin", "/usr/sbin") if os.access(f"{folder}/{name}", os.X_OK)),
        None,
    )
