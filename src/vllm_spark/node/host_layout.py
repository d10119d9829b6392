"""Folders, files, units and labels of the toolkit on a Spark. They are constant, because units name them literally.

plugins/module_utils/spark_host_layout.py is a link to this file. A program that is copied to a Spark without this file
repeats a name; tests/unit/project/test_one_source.py holds it to this file. Standard library alone.
"""

from __future__ import annotations

CONFIG_DIR = "/etc/vllm-spark"
RUN_DIR = "/run/vllm-spark"
STATE_DIR = "/var/lib/vllm-spark"
UNIT_DIR = "/etc/systemd/system"
# ActiveState of a unit that has begun and not ended.
RUNNING = ("active", "activating", "reloading")
UNIT_FILE = f"{UNIT_DIR}/vllm@.service"
# The lock of the run that changes the Spark now (lifecycle/operator_lock.py).
LOCK = "operator.lock"
# In the same folder: the name of this boot, and the lock of the records of starts (starts.py).
BOOT, STARTS_LOCK = "boot", "starts.lock"

# In the folder of a deployment: the folder of its launches, and the links to four of them. The last one is that of a
# rollback that has not ended.
LAUNCHES, CURRENT, PREVIOUS, FAILED, SWAPPING = "launches", "current", "previous", "failed", "swapping"
# Labels of the container of an engine, and of a derived image.
DEPLOYMENT_LABEL, LAUNCH_LABEL, RANK_LABEL = "vllm-spark.deployment", "vllm-spark.launch", "vllm-spark.rank"
INPUTS_LABEL, BASE_LABEL = "vllm-spark.inputs", "vllm-spark.base"

# The history of each deployment, that of its states, and its last start with the count of failed ones.
HISTORY_DIR = f"{STATE_DIR}/history"
STATES_DIR = f"{STATE_DIR}/states"
STARTS_DIR = f"{STATE_DIR}/starts"
# The defaults of vllm_hub_dir and vllm_cache_dir.
HUB_DIR = f"{STATE_DIR}/hub"
CACHE_DIR = f"{STATE_DIR}/cache"
# The journal of fabric.yml, the images that pulls have brought, and the packages of the distribution that the toolkit
# has installed.
FABRIC_DIR = f"{STATE_DIR}/fabric"
PULLED = f"{STATE_DIR}/pulled"
PACKAGES = f"{STATE_DIR}/packages"

PROGRAM_DIR = "/usr/local/lib/vllm-spark"
SUPERVISOR = f"{PROGRAM_DIR}/supervise"
# The modules of the supervisor, and the key of a pair's link in the folder of its deployment.
SUPERVISOR_MODULES = f"{PROGRAM_DIR}/pair"
LINK_KEY = "link.key"
LIVENESS = f"{PROGRAM_DIR}/liveness"
# The program by which units write the state of a deployment, and the unit that systemd starts when one stays down.
STATE_PROGRAM = f"{PROGRAM_DIR}/state"
# The program by which deployments that share a Spark load one after another (node/take_turn.py).
TURN_PROGRAM = f"{PROGRAM_DIR}/take-turn"
GAVE_UP_UNIT = "vllm-gave-up@.service"
# The program that tells the owner about troubles, its settings with their secret, its unit and its timer, and what was
# told and what waits.
NOTIFY = f"{PROGRAM_DIR}/notify"
NOTIFY_SETTINGS = f"{CONFIG_DIR}/notify.json"
NOTIFY_DIR = f"{STATE_DIR}/notify"
NOTIFY_UNIT, NOTIFY_TIMER = "vllm-notify.service", "vllm-notify.timer"
NOTIFY_ENABLED = f"{UNIT_DIR}/timers.target.wants/{NOTIFY_TIMER}"
# The program that lends memory to another program and brings deployments back, its unit and its timer, and the lease
# (lease.py).
LEND = f"{PROGRAM_DIR}/lend"
LEASE = f"{STATE_DIR}/lease.json"
LEASE_UNIT, LEASE_TIMER = "vllm-lease.service", "vllm-lease.timer"
# Figures of the Spark: the program that writes those which no exporter has, node-exporter, and on one host Prometheus
# and Alertmanager with their files, and the folder of the page.
METRICS = f"{PROGRAM_DIR}/metrics"
METRICS_RUN_DIR = "/run/vllm-metrics"
METRICS_TIMER, METRICS_EXPORTER = "vllm-metrics.timer", "vllm-metrics-host.service"
METRICS_PROMETHEUS, METRICS_ALERTS = "vllm-metrics-prometheus.service", "vllm-metrics-alerts.service"
METRICS_CONFIG = f"{CONFIG_DIR}/metrics-prometheus.yml"
METRICS_RULES = f"{CONFIG_DIR}/metrics-alerts.yml"
METRICS_WATCH = f"{CONFIG_DIR}/metrics-watch.yml"
METRICS_TELLS = f"{CONFIG_DIR}/metrics-alertmanager.yml"
METRICS_KEPT = f"{CONFIG_DIR}/metrics-kept.env"
METRICS_PAGE_DIR = f"{PROGRAM_DIR}/watch"
METRICS_RECORDS, METRICS_SILENCES = f"{STATE_DIR}/metrics/prometheus", f"{STATE_DIR}/metrics/alerts"
# The edge: HAProxy in front of the engines of a host. Its user has the name of the group that reaches their sockets.
EDGE_DIR = f"{CONFIG_DIR}/edge"
EDGE_CONFIG = f"{EDGE_DIR}/haproxy.cfg"
EDGE_KEYS = f"{EDGE_DIR}/keys.map"
EDGE_CERTIFICATE = f"{EDGE_DIR}/tls.pem"
# A second one without addresses, and the list by which HAProxy chooses. Only an own-ca has them.
EDGE_NAMES_CERTIFICATE = f"{EDGE_DIR}/names.pem"
EDGE_CERTIFICATE_LIST = f"{EDGE_DIR}/certificates.list"
EDGE_AUTHORITY = f"{EDGE_DIR}/ca.crt"
EDGE_TOKENS = f"{EDGE_DIR}/tokens.lua"
# The second stage, which has the route by model and the buffers for bodies.
EDGE_ROUTE = f"{EDGE_DIR}/route.cfg"
EDGE_ROUTE_UNIT = "vllm-edge-route.service"
EDGE_ROUTE_UNIT_FILE = f"{UNIT_DIR}/{EDGE_ROUTE_UNIT}"
EDGE_UNIT = "vllm-edge.service"
EDGE_UNIT_FILE = f"{UNIT_DIR}/{EDGE_UNIT}"
# Warn in the journal before the certificate ends.
EDGE_END_UNIT = "vllm-edge-end.service"
EDGE_END_UNIT_FILE = f"{UNIT_DIR}/{EDGE_END_UNIT}"
EDGE_END_TIMER_FILE = f"{UNIT_DIR}/vllm-edge-end.timer"
# What belongs to the user of the edge: person -> the end of its refusal, for keys with a quota.
EDGE_STATE_DIR = f"{STATE_DIR}/edge"
EDGE_SPENT = f"{EDGE_STATE_DIR}/spent.map"
# The program that counts the tokens of today, its unit and its timer.
EDGE_QUOTA = f"{PROGRAM_DIR}/edge-quota"
EDGE_QUOTA_UNIT = "vllm-edge-quota.service"
EDGE_QUOTA_UNIT_FILE = f"{UNIT_DIR}/{EDGE_QUOTA_UNIT}"
EDGE_QUOTA_TIMER_FILE = f"{UNIT_DIR}/vllm-edge-quota.timer"
# deployment -> state, which node/state_writer.py writes.
EDGE_STATES = f"{RUN_DIR}/states.map"
EDGE_RUN_DIR = "/run/vllm-edge"
EDGE_ADMIN_SOCKET = f"{EDGE_RUN_DIR}/admin.sock"
# By which the process before a reload tells the next one who has shown a key.
EDGE_PEERS_SOCKET = f"{EDGE_RUN_DIR}/peers.sock"
EDGE_ROUTE_RUN_DIR = "/run/vllm-edge-route"
EDGE_ROUTE_ADMIN_SOCKET = f"{EDGE_ROUTE_RUN_DIR}/admin.sock"
# The unit in which vllm-switch does its work.
SWITCH_UNIT = "vllm-switch.service"
# The program that starts a model for which a person asks, its list of models, and the socket on which the edge asks it.
EDGE_SWITCH = f"{PROGRAM_DIR}/edge-switch"
EDGE_SWITCH_LIST = f"{EDGE_DIR}/switch.json"
EDGE_SWITCH_UNIT = "vllm-edge-switch.service"
EDGE_SWITCH_UNIT_FILE = f"{UNIT_DIR}/{EDGE_SWITCH_UNIT}"
EDGE_SWITCH_SOCKET = "/run/vllm-edge-switch/switch.sock"
# Root's side of it, which runs vllm-switch for one deployment of that list.
SWITCH_ROOT_SOCKET = "/run/vllm-switch-root.sock"
SWITCH_ROOT_SOCKET_FILE = f"{UNIT_DIR}/vllm-switch-root.socket"
SWITCH_ROOT_UNIT = "vllm-switch-root@.service"
SWITCH_ROOT_UNIT_FILE = f"{UNIT_DIR}/{SWITCH_ROOT_UNIT}"

# The firewall table: its file, the unit that loads it at boot, and its name in nft.
FIREWALL = f"{CONFIG_DIR}/firewall.nft"
FIREWALL_UNIT = "vllm-spark-firewall.service"
FIREWALL_UNIT_FILE = f"{UNIT_DIR}/{FIREWALL_UNIT}"
FIREWALL_TABLE = "inet vllm_spark"

# In the PATH, because operators type its name.
SWITCH_PROGRAM = "/usr/local/bin/vllm-switch"

# Only this group, which is the edge's, and root reach the socket of a closed engine. The number of its user is free on
# every system: Debian's policy and systemd's table of users end below 65536, and subordinate users begin at 100000.
EDGE_GROUP = "vllm-spark-edge"
ENGINE_USER = 70000
# Modules by which liveness and vllm-switch reach an engine and the edge.
MODULES = f"{PROGRAM_DIR}/modules"

# The folders of `bench`: programs, and the evidence of a run that has not been fetched yet.
BENCH_PROGRAM_DIR = f"{PROGRAM_DIR}/bench"
BENCH_DIR = f"{STATE_DIR}/bench"

# The folders of `pull`: programs, states of jobs, and cached image layers as the registry serves them.
PULL_PROGRAM_DIR = f"{PROGRAM_DIR}/pull"
JOBS_DIR = f"{RUN_DIR}/pull"
IMAGE_CACHE_DIR = f"{STATE_DIR}/images"
# On the head: build contexts of derived images and the build log.
BUILD_DIR = f"{STATE_DIR}/build"
# In a derived image: what the build has recorded.
DERIVED_RECORD = f"{CONFIG_DIR}/derived.json"


def api_folder(name: str) -> str:
    """Return the folder of the socket of a closed engine. The engine may write there, so only its own files are there:
    root writes its states one level above."""
    return f"{RUN_DIR}/{name}/api"


def api_socket(name: str) -> str:
    """Return the socket on which a closed engine listens."""
    return f"{api_folder(name)}/api.sock"


def edge_socket(name: str, run_dir: str = RUN_DIR) -> str:
    """Return the path by which the edge reaches that socket: a link in a folder of root."""
    return f"{run_dir}/{name}/api.sock"


def deployment_of(unit: str) -> str:
    """Return the deployment of a unit, vllm@NAME.service; empty for an empty text."""
    return unit.partition("@")[2].removesuffix(".service")
